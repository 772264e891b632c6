package teletensor

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"teletensor/wire"
)

// flush sends what is gathered, as one frame, when the credits allow it.
func (c *Client) flush() {
	if len(c.pending) == 0 || c.fatal != nil {
		return
	}
	frame := &wire.Frame{FirstSeq: c.seq - uint64(len(c.pending)), FirstId: c.firstID,
		AckUpto: c.number, AttachCounter: c.attach, Commands: c.pending}
	c.pending, c.weight, c.firstID = nil, 0, c.nextID
	c.sentBytes += uint64(proto.Size(frame))
	for c.seq-1 > c.creditUpto || c.sentBytes > c.creditBytes {
		if c.read() != nil {
			return
		}
	}
	c.sent = append(c.sent, frame)
	_ = c.link.stream.SendMsg(frame) // if it failed, read tells why
}

// wait returns when all commands up to this one have run.
func (c *Client) wait(upto uint64) error {
	for c.flush(); c.completed < upto; {
		if err := c.read(); err != nil {
			return err
		}
	}
	return c.fatal
}

// read takes in the next Progress. A lost connection is attached again.
func (c *Client) read() error {
	if c.fatal != nil {
		return c.fatal
	}
	progress := &wire.Progress{}
	if err := receive(c.link.stream, progress); isLost(err) {
		c.fatal = c.reattach()
	} else if err != nil {
		c.fatal = err
	} else {
		c.take(progress)
	}
	return c.fatal
}

func (c *Client) take(progress *wire.Progress) {
	raise(&c.number, progress.Number)
	raise(&c.completed, progress.CompletedUpto)
	raise(&c.creditUpto, progress.CreditUpto)
	raise(&c.creditBytes, progress.CreditBytes)
	c.forget(c.completed)
	for _, each := range progress.Fetched {
		if _, awaited := c.fetched[each.Seq]; awaited { // else it was told again
			c.fetched[each.Seq] = each
		}
	}
	for _, each := range progress.Errors {
		if !c.told[each.Root] {
			c.told[each.Root] = true
			c.failures = append(c.failures, &LateError{each})
		}
	}
}

func raise(value *uint64, to uint64) {
	if to > *value {
		*value = to
	}
}

// forget drops the frames whose commands have all run or arrived.
func (c *Client) forget(upto uint64) {
	for len(c.sent) > 0 && c.sent[0].FirstSeq+uint64(len(c.sent[0].Commands)) <= upto+1 {
		c.sent = c.sent[1:]
	}
}

// again repeats a call until it succeeds, fails for good, or the lease is over.
func (c *Client) again(call func() error) error {
	deadline := time.Now().Add(c.lease)
	for pause := 10 * time.Millisecond; ; pause = pause * 3 / 2 {
		if err := call(); !isLost(err) || time.Now().Add(pause).After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// reattach attaches to the session on a new connection and sends again what has not arrived.
func (c *Client) reattach() error {
	return c.again(func() error {
		c.link.cut()
		c.attach++
		reply := &wire.AttachReply{}
		err := c.link.unary("Attach", &wire.AttachRequest{InstanceId: c.instance, AttachCounter: c.attach,
			ServerEpoch: c.epoch, ProgressUpto: c.number, CompletedUpto: c.completed, Uploads: c.uploads},
			reply, c.lease)
		if err == nil && reply.MovedTo != "" {
			err = fmt.Errorf("teletensor: the session has moved to %s, where this client does not follow", reply.MovedTo)
		}
		if err == nil {
			err = c.link.run(c.attach)
		}
		if err != nil {
			return err
		}
		c.epoch = reply.ServerEpoch
		c.forget(reply.ReceivedUpto)
		for _, frame := range c.sent {
			_ = c.link.stream.SendMsg(frame)
		}
		return nil
	})
}
