// Package teletensor is a client of teletensord. It knows no rules of the ops: it opens a thin session
// (docs/wire.md, "Thin clients"), in which a wrong call fails late. Methods of Client issue commands without
// waiting; Read and Finish wait and return the errors. A lost connection is attached again without notice.
// A Client is for one goroutine at a time.
package teletensor

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"teletensor/wire"
)

// The version of the protocol, and the number of commands after which a frame is sent at the latest.
const protocol, gather = 2, 64

// Options of a session.
type Options struct {
	Token string        // a token of a user, for daemons that ask for one
	TLS   *tls.Config   // the default: none on loopback and UNIX sockets, else the system's authorities
	Name  string        // name of the session
	Lease time.Duration // how long the session outlives its connection; the default is the daemon's
}

// LateError is the failure of command Root, returned for it or for a command that depends on its result.
type LateError struct{ *wire.LateError }

func (e *LateError) Error() string {
	return fmt.Sprintf("command %d: %s (code %d)", e.Root, e.Text, e.Code)
}

// Client is a session of a daemon.
type Client struct {
	link     link
	limits   *wire.Limits
	instance []byte
	epoch    uint64 // of the daemon's run
	attach   uint64
	lease    time.Duration

	seq, nextID uint64          // of the next command, of the next handle
	pending     []*wire.Command // not sent yet
	firstID     uint64          // of the frame that is gathered
	weight      int             // bytes and ids of that frame
	sent        []*wire.Frame   // not completed yet, for the case that the connection is lost
	sentBytes   uint64

	number, completed       uint64 // of the last Progress; of the last command that has run
	creditUpto, creditBytes uint64
	fetched                 map[uint64]*wire.Fetched // answers by command; nil while awaited
	failures                []*LateError             // not returned yet
	told                    map[uint64]bool          // roots of failures so far
	uploads                 uint64
	noGrad                  bool
	live                    map[uint64]bool // the ids of tensors that are not released
	fatal                   error
}

// Open connects to "host:port" or "unix:/path" and opens a session.
func Open(address string, options Options) (*Client, error) {
	c := &Client{instance: make([]byte, 16), attach: 1, seq: 1, nextID: 1, firstID: 1,
		fetched: map[uint64]*wire.Fetched{}, told: map[uint64]bool{}, live: map[uint64]bool{}}
	if _, err := rand.Read(c.instance); err != nil {
		return nil, err
	}
	if err := c.link.dial(address, options); err != nil {
		return nil, err
	}
	request, reply := &wire.HelloRequest{ProtocolMin: protocol, ProtocolMax: protocol, ClientVersion: "go",
		InstanceId: c.instance, AttachCounter: c.attach, SessionName: options.Name, Thin: true, Ops: catalog,
		LeaseSeconds: uint32(options.Lease / time.Second)}, &wire.HelloReply{}
	err := c.link.unary("Hello", request, reply, patience)
	if err == nil && !reply.Thin {
		err = errors.New("teletensor: the daemon is too old for this client")
	}
	c.epoch, c.limits, c.lease = reply.ServerEpoch, reply.Limits, time.Duration(reply.LeaseSeconds)*time.Second
	c.creditUpto, c.creditBytes = c.limits.GetCreditUpto(), c.limits.GetCreditBytes()
	c.link.session = reply.Token
	if err == nil {
		err = c.link.run(c.attach)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the session. Its tensors are gone.
func (c *Client) Close() (err error) {
	c.fatal = errors.New("teletensor: the session is closed")
	c.link.cut()
	if c.link.session != "" {
		err = c.link.unary("Close", &wire.CloseRequest{}, &wire.CloseReply{}, patience)
	}
	c.link.conn.Close()
	return err
}

// add gathers a command that makes handles, and returns its number and the handles.
func (c *Client) add(command *wire.Command, made int) (seq uint64, handles []Tensor) {
	if c.fatal == nil { // else Read and Finish return it
		c.pending, c.weight = append(c.pending, command), c.weight+proto.Size(command)+8+made
	}
	for ; made > 0; made-- {
		handles = append(handles, Tensor{c.nextID})
		c.live[c.nextID] = true
		c.nextID++
	}
	c.seq++
	if len(c.pending) >= gather || c.weight > int(c.limits.MaxFrameItems/2) || c.weight > int(c.limits.MaxFrameBytes/2) {
		c.flush()
	}
	return c.seq - 1, handles
}

// call issues an op; `made` is the number of its results. The methods of ops.go use it.
func (c *Client) call(op, made int, inplace bool, attributes []Attribute, operands ...Operand) []Tensor {
	e := encoder{&wire.Command{Op: uint32(op), Record: !c.noGrad, Inplace: inplace}, c.nextID}
	for _, each := range operands {
		e.operand(each)
	}
	for _, each := range attributes {
		e.attribute(each)
	}
	if made != 1 && !inplace {
		e.Made = proto.Uint32(uint32(made))
	}
	_, handles := c.add(e.Command, made)
	return handles
}

func (c *Client) distances(tensors []Tensor) (found []uint64) {
	for _, each := range tensors {
		found = append(found, each.distance(c.nextID))
	}
	return found
}

// New makes a tensor of these elements on the daemon's host. Without a shape it has one dimension.
func New[T Element](c *Client, elements []T, shape ...int64) (Tensor, error) {
	var data bytes.Buffer
	_ = binary.Write(&data, binary.LittleEndian, elements) // such elements can be written
	if len(shape) == 0 {
		shape = []int64{int64(len(elements))}
	}
	command := &wire.Command{Other: &wire.Command_Constant{Constant: &wire.Constant{
		Dtype: dtypeOf[T](), Shape: shape, Data: data.Bytes()}}}
	var err error
	if data.Len() > int(c.limits.InlineBytes) {
		uploaded := &wire.Uploaded{Dtype: dtypeOf[T](), Shape: shape}
		command.Other = &wire.Command_Uploaded{Uploaded: uploaded}
		uploaded.Upload, err = c.upload(data.Bytes())
	}
	if err != nil {
		return Tensor{}, err
	}
	_, made := c.add(command, 1)
	return made[0], nil
}

// RequireGrad says that gradients with respect to the tensor are wanted.
func (c *Client) RequireGrad(t Tensor) {
	c.add(&wire.Command{Other: &wire.Command_SetFlag{SetFlag: &wire.SetFlag{Handle: t.distance(c.nextID), On: true}}}, 0)
}

// Gradients returns the gradients of `root`, one for each input. `seed` is the gradient of the root; the zero
// Tensor means ones.
func (c *Client) Gradients(root, seed Tensor, inputs ...Tensor) []Tensor {
	_, made := c.add(&wire.Command{Other: &wire.Command_Backward{Backward: &wire.Backward{
		Roots: []uint64{root.distance(c.nextID)}, Seeds: []uint64{seed.distance(c.nextID)}, Inputs: c.distances(inputs),
		HasInputs: true, Made: uint32(len(inputs))}}}, len(inputs))
	return made
}

// NoGrad runs f, whose ops are not recorded for gradients.
func (c *Client) NoGrad(f func()) {
	defer func(before bool) { c.noGrad = before }(c.noGrad)
	c.noGrad = true
	f()
}

// Scope runs f and then releases all tensors that f has made, except those that it returns.
func (c *Client) Scope(f func() []Tensor) []Tensor {
	first, kept, gone := c.nextID, map[uint64]bool{}, []Tensor{}
	returned := f()
	for _, each := range returned {
		kept[each.id] = true
	}
	for id := first; id < c.nextID; id++ {
		if c.live[id] && !kept[id] {
			gone = append(gone, Tensor{id})
		}
	}
	c.Release(gone...)
	return returned
}

// Release frees the tensors. They must not be used afterwards.
func (c *Client) Release(tensors ...Tensor) {
	for ; len(tensors) > 1000; tensors = tensors[1000:] { // a frame has a maximum of items
		c.Release(tensors[:1000]...)
	}
	if len(tensors) == 0 {
		return
	}
	for _, each := range tensors {
		delete(c.live, each.id)
	}
	c.add(&wire.Command{Other: &wire.Command_Release{Release: &wire.Release{Handles: c.distances(tensors)}}}, 0)
}

// Forgive acknowledges a failure: what the failed commands wrote in place has its last good values again.
func (c *Client) Forgive(failure *LateError) {
	c.add(&wire.Command{Other: &wire.Command_Raise{Raise: &wire.Raise{Root: failure.Root}}}, 0)
}

func (c *Client) fetch(fetch *wire.Fetch) (*wire.Fetched, error) {
	seq, _ := c.add(&wire.Command{Other: &wire.Command_Fetch{Fetch: fetch}}, 0)
	c.fetched[seq] = nil
	defer delete(c.fetched, seq)
	c.flush()
	for c.fetched[seq] == nil {
		if err := c.read(); err != nil {
			return nil, err
		}
	}
	if found := c.fetched[seq]; found.Code != 0 {
		return nil, &LateError{&wire.LateError{Root: found.Root, Code: found.Code, Text: found.Text}}
	}
	return c.fetched[seq], nil
}

// Describe returns the element type and the shape of a tensor, without its elements.
func (c *Client) Describe(t Tensor) (DType, []int64, error) {
	found, err := c.fetch(&wire.Fetch{Handle: t.distance(c.nextID), Describe: true})
	return found.GetDtype(), found.GetShape(), err
}

// Read returns the elements of a tensor in row-major order when they have been computed, or a *LateError.
func Read[T Element](c *Client, t Tensor) ([]T, error) {
	dtype, shape, err := c.Describe(t)
	if err != nil {
		return nil, err
	}
	if dtype != dtypeOf[T]() {
		return nil, fmt.Errorf("teletensor: the tensor has element type %v", dtype)
	}
	count := 1
	for _, size := range shape {
		count *= int(size)
	}
	elements := make([]T, count)
	var data []byte
	if binary.Size(elements) > int(c.limits.InlineBytes) {
		data, err = c.download(t)
	} else {
		found, failed := c.fetch(&wire.Fetch{Handle: t.distance(c.nextID)})
		data, err = found.GetData(), failed
	}
	if err == nil {
		err = binary.Read(bytes.NewReader(data), binary.LittleEndian, elements)
	}
	return elements, err
}

// Finish returns when all commands have run. The error is the first failure that Finish has not returned
// before.
func (c *Client) Finish() error {
	err := c.wait(c.seq - 1)
	if err == nil && len(c.failures) > 0 {
		err, c.failures = c.failures[0], c.failures[1:]
	}
	return err
}
