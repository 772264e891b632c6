package teletensor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"teletensor/wire"
)

// Refusal is a call that ended with a status. Reason is the word of docs/wire.md, or empty.
type Refusal struct {
	Status error // for status.Code and status.Convert
	Reason string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%v (reason %q)", r.Status, r.Reason) }

func refusal(err error, trailer metadata.MD) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &Refusal{err, strings.Join(trailer.Get("teletensor-reason"), "")}
}

// passing has the reasons after which a call is tried again.
var passing = map[string]bool{"restart": true, "arriving": true, "resting": true, "streams": true}

// isLost says whether a call may succeed on another connection.
func isLost(err error) bool {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return err == io.EOF
	}
	code := status.Code(refusal.Status)
	return code == codes.Unavailable || code == codes.Canceled || passing[refusal.Reason]
}

// codec encodes messages with google.golang.org/protobuf, whatever grpc itself uses.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Unmarshal(data []byte, v interface{}) error {
	return proto.Unmarshal(data, v.(proto.Message))
}

func (codec) Marshal(v interface{}) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }

// link is the connection of a session: its calls, and its Run stream.
type link struct {
	conn     *grpc.ClientConn
	metadata []string // keys and values of all calls
	stream   grpc.ClientStream
	cut      context.CancelFunc // ends the stream
}

func (l *link) dial(address string, options Options) (err error) {
	security := grpc.WithInsecure()
	host, _, _ := net.SplitHostPort(address)
	local := strings.HasPrefix(address, "unix:") || host == "localhost" || net.ParseIP(host).IsLoopback()
	if options.TLS != nil || !local {
		security = grpc.WithTransportCredentials(credentials.NewTLS(options.TLS)) // nil is the default
	}
	if options.Token != "" {
		l.metadata = []string{"authorization", "Bearer " + options.Token}
	}
	l.cut = func() {}
	l.conn, err = grpc.Dial(address, security,
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(largest)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	return err
}

// context has the metadata of a call; `more` are further keys and values.
func (l *link) context(more ...string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), append(more, l.metadata...)...)
}

func (l *link) unary(name string, request, reply proto.Message, within time.Duration) error {
	ctx, cancel := context.WithTimeout(l.context(), within)
	defer cancel()
	var trailer metadata.MD
	err := l.conn.Invoke(ctx, "/teletensor.v1.Compute/"+name, request, reply, grpc.Trailer(&trailer),
		grpc.WaitForReady(name != "Hello"))
	return refusal(err, trailer)
}

// open opens a stream of the named call; the function ends it.
func (l *link) open(name string, more ...string) (grpc.ClientStream, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(l.context(more...))
	stream, err := l.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/teletensor.v1.Compute/"+name, grpc.WaitForReady(true))
	return stream, cancel, refusal(err, nil)
}

// run opens Run of this attach.
func (l *link) run(attach uint64) (err error) {
	l.stream, l.cut, err = l.open("Run", "teletensor-attach", fmt.Sprint(attach))
	return err
}

// transfer makes a call that sends these messages, and calls `take` after each message that comes into `reply`.
func (l *link) transfer(name string, messages []proto.Message, reply proto.Message, take func(), more ...string) error {
	stream, cancel, err := l.open(name, more...)
	defer cancel()
	if err != nil {
		return err
	}
	for _, message := range messages {
		_ = stream.SendMsg(message) // if it failed, the reply tells why
	}
	_ = stream.CloseSend()
	for err = stream.RecvMsg(reply); err == nil; err = stream.RecvMsg(reply) {
		take()
	}
	if err == io.EOF {
		return nil
	}
	return refusal(err, stream.Trailer())
}

// flush sends what is gathered, as one frame, when the credits allow it.
func (c *Client) flush() {
	if len(c.pending) == 0 || c.fatal != nil {
		return
	}
	frame := &wire.Frame{FirstSeq: c.seq - uint64(len(c.pending)), FirstId: c.firstID, Commands: c.pending,
		AckUpto: c.progress.Number, AttachCounter: c.attach.AttachCounter}
	c.pending, c.weight, c.firstID = nil, 0, c.nextID
	c.sentBytes += uint64(proto.Size(frame))
	for c.fatal == nil && (c.seq-1 > c.progress.CreditUpto || c.sentBytes > c.progress.CreditBytes) {
		c.read()
	}
	c.sent = append(c.sent, frame)
	_ = c.link.stream.SendMsg(frame) // if it failed, read tells why
}

// until sends what is gathered, and reads until what is waited for has come.
func (c *Client) until(come func() bool) error {
	for c.flush(); c.fatal == nil && !come(); {
		c.read()
	}
	return c.fatal
}

// read takes in the next Progress. A lost connection is attached again; what ends the session is `fatal`.
func (c *Client) read() {
	progress := &wire.Progress{}
	err := refusal(c.link.stream.RecvMsg(progress), c.link.stream.Trailer())
	if isLost(err) {
		err, progress = c.again(c.reattach), c.progress
	}
	if c.fatal = err; err != nil || progress == c.progress {
		return
	}
	c.progress = progress
	c.forget(progress.CompletedUpto)
	for _, c.fetched = range progress.Fetched { // at most one is awaited
	}
	for _, each := range progress.Errors {
		c.failures = append(c.failures, &LateError{each})
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
		if err := call(); !isLost(err) || c.fatal != nil || time.Now().Add(pause).After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// reattach attaches to the session on a new connection and sends again what has not arrived.
func (c *Client) reattach() error {
	c.link.cut()
	c.attach.AttachCounter++
	c.attach.ProgressUpto, c.attach.CompletedUpto = c.progress.Number, c.progress.CompletedUpto
	reply := &wire.AttachReply{}
	err := c.link.unary("Attach", c.attach, reply, c.lease)
	if err == nil && reply.MovedTo != "" {
		err = fmt.Errorf("teletensor: the session has moved to %s, where this client does not follow", reply.MovedTo)
	}
	if err == nil {
		err = c.link.run(c.attach.AttachCounter)
	}
	if err != nil {
		return err
	}
	c.attach.ServerEpoch = reply.ServerEpoch
	c.forget(reply.ReceivedUpto)
	for _, frame := range c.sent {
		_ = c.link.stream.SendMsg(frame)
	}
	return nil
}

// upload sends the bytes of a tensor; its number for the command Uploaded. A cut upload is continued.
func (c *Client) upload(data []byte) (number uint64, err error) {
	c.attach.Uploads++
	staged, reply := &wire.StagedReply{}, &wire.UploadReply{}
	total, size := uint64(len(data)), uint64(c.limits.MaxChunkBytes)
	err = c.again(func() error {
		first := &wire.UploadChunk{Bytes: total, Offset: staged.Received, Data: data[staged.Received:]}
		chunks := []proto.Message{first}
		for last := first; uint64(len(last.Data)) > size; chunks = append(chunks, last) {
			rest := last.Data[size:]
			last.Data = last.Data[:size]
			last = &wire.UploadChunk{Offset: last.Offset + size, Data: rest}
		}
		err := c.link.transfer("Upload", chunks, reply, func() {}, "teletensor-upload", fmt.Sprint(c.attach.Uploads))
		if isLost(err) {
			if err := c.link.unary("Staged", &wire.StagedRequest{Key: c.attach.Uploads}, staged, c.lease); err != nil {
				return err
			}
			if staged.Upload != 0 { // only the reply was lost
				reply.Upload, err = staged.Upload, nil
			}
		}
		return err
	})
	return reply.Upload, err
}

// download reads the elements of a tensor of any size. A cut download is continued.
func (c *Client) download(t Tensor) (data []byte, err error) {
	seq, fetch := c.seq, &wire.Fetch{Handle: c.distances(t)[0], Bulk: true}
	c.add(&wire.Command{Other: &wire.Command_Fetch{Fetch: fetch}}, 0)
	// A download names a command that has arrived.
	if err := c.until(func() bool { return c.progress.CompletedUpto >= seq }); err != nil {
		return nil, err
	}
	err = c.again(func() error {
		request, chunk := &wire.DownloadRequest{Seq: seq, Offset: uint64(len(data))}, &wire.DownloadChunk{}
		return c.link.transfer("Download", []proto.Message{request}, chunk, func() { data = append(data, chunk.Data...) })
	})
	c.add(&wire.Command{Other: &wire.Command_Taken{Taken: &wire.Taken{Fetch: seq}}}, 0)
	return data, err
}
