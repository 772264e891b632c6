"""Protocol numbers: what Hello chooses, a client of each served number, and this client with a daemon of each."""

import grpc
import numpy as np
import pytest
import teletensor
from conformance.liar import Liar
from support.daemon import wait_until
from support.raw import Raw
from support.released import Client, Server
from support.sin2 import train
from teletensor import _core

NUMBERS = range(_core.PROTOCOL_MIN, _core.PROTOCOL + 1)
SUM = (0, 1, 0)  # the attributes of sum over all elements
MUL, SUM_OP = 2, 3  # positions in support.raw.OPS


@pytest.fixture
def daemon(start_daemon):
    return start_daemon("--lease", "60", "--restart", "60")


# ---------------------------------------------------------------- what Hello chooses


@pytest.mark.parametrize("low, high, chosen", [(1, 1, 1), (2, 2, 2), (1, 2, 2), (0, 1, 1), (1, 99, 2), (2, 7, 2)])
def test_hello_chooses_the_highest_common_number(daemon, low, high, chosen):
    with Raw(daemon.unix) as raw:
        session = raw.session(protocol_min=low, protocol_max=high)
        assert session.reply.protocol == chosen
        session.run(session.constant([1.0]), session.fetch(1))
        assert np.frombuffer(session.fetched().data, np.float32).tolist() == [1.0]
        session.close()


@pytest.mark.parametrize("low, high, code, text", [
    (3, 4, "FAILED_PRECONDITION",
     "the client speaks protocol 3 to 4, server {} speaks 1 to 2: install a newer daemon, or a client of an earlier"),
    (3, 3, "FAILED_PRECONDITION", "the client speaks protocol 3, server {} speaks 1 to 2: install a newer daemon"),
    (0, 0, "FAILED_PRECONDITION", "the client speaks protocol 0, server {} speaks 1 to 2: install a newer client"),
    (2, 1, "INVALID_ARGUMENT", "Hello: protocol_min is 2, above protocol_max, which is 1"),
])
def test_hello_refuses_other_numbers_with_the_cure(daemon, low, high, code, text):
    with Raw(daemon.unix) as raw:
        with pytest.raises(grpc.RpcError) as caught:
            raw.hello(protocol_min=low, protocol_max=high)
        assert caught.value.code().name == code
        assert text.format(teletensor.__version__) in caught.value.details()
        assert not raw.sessions()


def test_describe_names_the_range(daemon):
    with Raw(daemon.unix) as raw:
        about = raw.describe()
    assert (about.protocol_min, about.protocol_max) == (NUMBERS[0], NUMBERS[-1])


# ---------------------------------------------------------------- a client of each number with this daemon


def retain_off(session, handle):
    """The command that the protocols read differently: SetFlag of kind 1 that is off."""
    pb = session.raw.program_pb
    return lambda next_id: session.command(set_flag=pb.SetFlag(what=1, handle=next_id - handle))


def gradients(session, made):
    """sum(neg(leaf)) backward with retain_off of neg(leaf); `made` is the number of .grads that a client expects."""
    pb, leaf = session.raw.program_pb, session.next_id
    session.run(
        session.constant([1.0, 2.0]), session.command(set_flag=pb.SetFlag(what=0, handle=1, on=True)),
        session.command(op=1, record=True, arguments=[2]), retain_off(session, leaf + 1),
        session.command(op=SUM_OP, record=True, arguments=[2], attributes=SUM),
        session.command(made=made, backward=pb.Backward(roots=[1], seeds=[0], made=made)),
        session.fetch(leaf + 2 + made))
    return np.frombuffer(session.fetched().data, np.float32).tolist()


@pytest.mark.parametrize("number", NUMBERS)
def test_the_session_knows_its_number_also_after_a_restart(daemon, number):
    """In protocol 1 a SetFlag of kind 1 that is off creates a node; in protocol 2 it keeps a gradient."""
    made = {1: 1, 2: 2}[number]
    with Client(daemon.unix, number) as raw:
        session = raw.session()
        assert session.reply.protocol == number
        assert gradients(session, made) == [-1.0, -1.0]
        daemon.drain()
        daemon.restart()
    with Client(daemon.unix, number) as session.raw:
        session.resume(progress_upto=1 << 40)
        assert gradients(session, made) == [-1.0, -1.0]
        session.end()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_client_of_an_earlier_number_works(daemon, number):
    """Everything that the contract of the number has and an ordinary client uses, by its own classes."""
    with Client(daemon.unix, number) as raw:
        pb = raw.program_pb
        session = raw.session(session_name="earlier", take_over=True)
        reply = session.reply
        assert (reply.protocol, reply.session_name, reply.limits.max_frame_commands > 0) == (number, "earlier", True)
        # A step of a regression: loss = sum((x w)^2), w -= rate * gradient.
        session.run(session.constant([1.0, 2.0]), session.constant([3.0, 4.0]),
                    session.command(set_flag=pb.SetFlag(what=0, handle=1, on=True)),
                    session.command(op=MUL, record=True, arguments=[4, 2]),
                    session.command(op=MUL, record=True, arguments=[2, 2]),
                    session.command(op=SUM_OP, record=True, arguments=[2], attributes=SUM),
                    session.command(made=1, backward=pb.Backward(roots=[1], seeds=[0], inputs=[4], has_inputs=True,
                                                                 made=1)),
                    session.fetch(6), session.fetch(5))
        told = {}
        while len(told) < 2:
            told |= {each.seq: each for each in session.progress().fetched}
        assert np.frombuffer(told[8].data, np.float32).tolist() == [6.0, 32.0]
        assert np.frombuffer(told[9].data, np.float32).tolist() == [73.0]
        # Wrong shapes end the session.
        session.run(session.constant([1.0] * 3), session.command(op=MUL, arguments=[2, 14]))
        code, text = session.refusal()
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "shapes do not broadcast" in text, text
        # A new session: bulk both ways, a cut, exactly once.
        session = raw.session(session_name="earlier", take_over=True)
        assert not session.reply.taken_over
        data = np.arange(1 << 16, dtype=np.float32)
        half = data.nbytes // 2
        upload = raw.upload(session.token, [{"bytes": data.nbytes, "data": data.tobytes()[:half]},
                                            {"offset": half, "data": data.tobytes()[half:]}]).upload
        session.run(session.command(uploaded=pb.Uploaded(dtype="DTYPE_FLOAT32", shape=data.shape, upload=upload)),
                    session.command(op=1, arguments=[2]), session.fetch(2, bulk=True))
        wait_until(lambda: [s for s in raw.sessions() if s.completed_upto == 3])
        chunks = list(raw.download(session.token, 3))
        assert (chunks[0].bytes, list(chunks[0].shape)) == (data.nbytes, list(data.shape))
        assert np.array_equal(np.frombuffer(b"".join(c.data for c in chunks), np.float32), -data)
        session.cut()
        assert session.resume().received_upto == 3
        session.run(session.command(taken=pb.Taken(fetch=3)),
                    session.command(keep=pb.Keep(name="weights", handle=1)), session.constant([5.0]),
                    session.fetch(3))
        assert np.frombuffer(session.fetched().data, np.float32).tolist() == [5.0]
        # Another client of the same number takes it over.
        second = raw.session(session_name="earlier", take_over=True)
        assert second.reply.taken_over and second.reply.protocol == number
        assert [(n.name, n.id) for n in second.reply.inventory.names] == [("weights", 2)]
        second.end()


def test_a_take_over_may_change_the_number(daemon):
    with Client(daemon.unix, 2) as newer, Client(daemon.unix, 1) as earlier:
        first = newer.session(session_name="shared", take_over=True)
        assert gradients(first, 2) == [-1.0, -1.0]
        pb = newer.program_pb
        first.run(first.command(keep=pb.Keep(name="root", handle=1)))
        wait_until(lambda: newer.sessions()[0].completed_upto == 8)
        second = earlier.session(session_name="shared", take_over=True)
        assert (second.reply.taken_over, second.reply.protocol) == (True, 1)
        second.seq, second.next_id = second.reply.next_seq, second.reply.next_id
        assert gradients(second, 1) == [-1.0, -1.0]
        second.end()


# ---------------------------------------------------------------- this client with a daemon of each number


@pytest.mark.parametrize("transport", ["native", "grpcio"])
@pytest.mark.parametrize("number", NUMBERS)
def test_this_client_with_a_daemon_of_an_earlier_number(daemon, tt, monkeypatch, number, transport):
    monkeypatch.setenv("TELETENSOR_TRANSPORT", transport)
    with tt.connect(daemon.unix):
        expected = train(tt, 0.9, epochs=1)
    with Server(daemon.unix, number) as server:
        with tt.connect(server.address, name="kept"):
            [hello] = server.hellos
            assert (hello.protocol_min, hello.protocol_max) == (NUMBERS[0], NUMBERS[-1])
            assert train(tt, 0.9, epochs=1) == expected
            # The node of a view is created again, because its base was written in place.
            x = tt.ones(4, requires_grad=True)
            base = x * 2
            view = base[1:3]
            base.mul_(3)
            assert view.grad_fn is not None
            (view * view).sum().backward()
            assert x.grad.tolist() == [0.0, 72.0, 72.0, 0.0]
            large = np.arange(1 << 20, dtype=np.float32)
            assert np.array_equal((-tt.tensor(large)).numpy(), -large)
            with pytest.raises(RuntimeError, match="singular"):
                tt.linalg.inv(tt.zeros(2, 2)).sum().item()
            assert tt.ones(3).sum().item() == 3.0
        flags = [c.set_flag for frame in server.frames for c in frame.commands if c.WhichOneof("other") == "set_flag"]
        again = [flag.what for flag in flags if flag.what == 2 or (flag.what == 1 and not flag.on)]
        assert again == [{1: 1, 2: 2}[number]]
        assert server.violations == []


def test_a_field_that_the_number_lacks_is_noticed(daemon):
    """The server of an earlier number would find a client that sends more than the contract has."""
    with Server(daemon.unix, 1) as server, Raw(server.address) as raw:
        session = raw.session(protocol_min=1, protocol_max=1)
        pb = raw.program_pb
        session.run(session.constant([1.0]), session.command(fetch=pb.Fetch(handle=1, describe=True)))
        assert session.refusal()[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert len(server.violations) == 1


def test_a_number_that_was_not_offered_is_refused(daemon, tt):
    """A server that chooses another number than the client offered."""
    def lie(name, values):
        if name == "HelloReply":
            values["protocol"] = 7

    with Liar(daemon.unix, lie=lie) as liar:
        with pytest.raises(tt.RefusedError, match="has chosen protocol 7, and this client offered 1 to 2"):
            tt.connect(liar.address)
