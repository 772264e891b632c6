package teletensor

import (
	"context"
	"crypto/tls"
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
)

// The longest time of a call that needs no computation, and the largest message of the daemon.
const patience, largest = 60 * time.Second, 64 << 20

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
	conn    *grpc.ClientConn
	bearer  string
	session string // the session's token
	stream  grpc.ClientStream
	cut     context.CancelFunc // ends the stream
}

func (l *link) dial(address string, options Options) (err error) {
	security := grpc.WithInsecure()
	if options.TLS != nil {
		security = grpc.WithTransportCredentials(credentials.NewTLS(options.TLS))
	} else if !isLocal(address) {
		security = grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{}))
	}
	l.bearer, l.cut = options.Token, func() {}
	l.conn, err = grpc.Dial(address, security,
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(largest)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	return err
}

func isLocal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return strings.HasPrefix(address, "unix:") || err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// context has the metadata of a call; `more` are further keys and values.
func (l *link) context(more ...string) context.Context {
	if l.bearer != "" {
		more = append(more, "authorization", "Bearer "+l.bearer)
	}
	if l.session != "" {
		more = append(more, "teletensor-token", l.session)
	}
	return metadata.AppendToOutgoingContext(context.Background(), more...)
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

func receive(stream grpc.ClientStream, message proto.Message) error {
	if err := stream.RecvMsg(message); err != nil {
		return refusal(err, stream.Trailer())
	}
	return nil
}
