"""The connection dies at many points of the stream (`make chaos` takes every one)."""

from support.cut import cut_run, whole_run


def test_cut_in_the_stream(start_daemon, tt):
    daemon = start_daemon()
    wanted, sent = whole_run(tt, daemon)
    assert sent > 1000
    points = [1, 2, 9, 10, 60, *range(sent // 20, sent, sent // 20)]
    lost = sum(cut_run(tt, daemon, at, wanted) for at in points)
    assert lost >= len(points) // 2  # runs differ a little in bytes, so the last ones may get through
    assert whole_run(tt, daemon)[0] == wanted
