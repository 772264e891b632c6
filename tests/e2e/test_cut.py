"""The connection is cut after every frame, and in the middle of some frames (`make chaos`: of all)."""

import pytest
from support.cut import cut_run, whole_run

pytestmark = pytest.mark.usefixtures("each_transport")


def test_cut_in_the_stream(start_daemon, tt):
    daemon = start_daemon("--lease", "0")
    wanted, sent, _ = whole_run(tt, daemon)
    assert sent > 1000
    points = [1, 2, 9, 10, 60, *range(sent // 20, sent, sent // 20)]
    lost = sum(cut_run(tt, daemon, at, wanted) for at in points)
    assert lost >= 5  # a busy machine sends the same in fewer frames and bytes: later cuts may miss it
    assert whole_run(tt, daemon)[0] == wanted


@pytest.mark.timeout(1800)
def test_cut_at_every_frame_boundary(start_daemon, tt):
    """Cuts in both directions, from the first frame after Hello to the last."""
    daemon = start_daemon("--lease", "0")
    wanted, _, frames = whole_run(tt, daemon)
    assert frames > 20
    lost = sum(cut_run(tt, daemon, n, wanted, frames=True) for n in range(1, frames + 1))
    assert lost >= 5  # as above
    assert whole_run(tt, daemon)[0] == wanted
