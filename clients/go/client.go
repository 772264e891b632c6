// Package teletensor is a client of teletensord. It opens a thin session (docs/wire.md): a wrong call fails late.
// Methods of Client issue commands without waiting; Read and Finish wait and return the errors. A lost connection is
// attached again without notice. A Client is for one goroutine at a time.
package teletensor

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"

	"teletensor/wire"
)

// The version of the protocol, the maximum number of commands in a frame, the maximum time of a call that needs no
// computation, and the maximum size of a message of the daemon.
const protocol, gather, patience, largest = 2, 64, 60 * time.Second, 64 << 20

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

// DType is an element type of the protocol, as an attribute of an op.
type DType = wire.DType

// Device is an attribute of an op: kind * 256 + index; 0 is the daemon's host.
type Device uint32

// Tensor is a handle of a tensor in the client's session. The zero value is no tensor.
type Tensor struct{ id uint64 }

// An Operand is a Tensor, []Tensor, bool, int, float64, or nil for an absent operand. An Attribute is a bool, int,
// float64, []int64, string, DType, Device, or nil for none.
type Operand = interface{}
type Attribute = interface{}

// Element is a Go type of elements.
type Element interface {
	bool | uint8 | int8 | int16 | int32 | int64 | float32 | float64 | uint16 | uint32 | uint64
}

var dtypes = map[reflect.Kind]DType{reflect.Bool: 1, reflect.Uint8: 2, reflect.Int8: 3, reflect.Int16: 4,
	reflect.Int32: 5, reflect.Int64: 6, reflect.Float32: 9, reflect.Float64: 10, reflect.Uint16: 13,
	reflect.Uint32: 14, reflect.Uint64: 15}

func dtypeOf[T Element]() DType {
	var element T
	return dtypes[reflect.TypeOf(element).Kind()]
}

// Client is a session of a daemon.
type Client struct {
	link        link
	limits      *wire.Limits
	lease       time.Duration
	attach      *wire.AttachRequest // for the case that the connection is lost
	seq, nextID uint64              // of the next command, of the next handle
	pending     []*wire.Command     // not sent yet
	firstID     uint64              // of the frame that is gathered
	weight      int                 // bytes and ids of that frame
	sent        []*wire.Frame       // not completed yet, for the case that the connection is lost
	sentBytes   uint64

	progress *wire.Progress  // the last one
	fetched  *wire.Fetched   // the last answer
	failures []*LateError    // not returned yet
	live     map[uint64]bool // the ids of tensors that are not released
	noGrad   bool
	fatal    error
}

// Open connects to "host:port" or "unix:/path" and opens a session.
func Open(address string, options Options) (*Client, error) {
	c := &Client{seq: 1, nextID: 1, firstID: 1, live: map[uint64]bool{}}
	c.attach = &wire.AttachRequest{InstanceId: make([]byte, 16), AttachCounter: 1}
	if _, err := rand.Read(c.attach.InstanceId); err != nil {
		return nil, err
	}
	if err := c.link.dial(address, options); err != nil {
		return nil, err
	}
	request, reply := &wire.HelloRequest{ProtocolMin: protocol, ProtocolMax: protocol, ClientVersion: "go",
		InstanceId: c.attach.InstanceId, AttachCounter: 1, SessionName: options.Name, Thin: true, Ops: catalog,
		LeaseSeconds: uint32(options.Lease / time.Second)}, &wire.HelloReply{}
	err := c.link.unary("Hello", request, reply, patience)
	if err == nil && !reply.Thin {
		err = errors.New("teletensor: the daemon is too old for this client")
	}
	c.link.metadata = append(c.link.metadata, "teletensor-token", reply.Token)
	c.attach.ServerEpoch, c.limits = reply.ServerEpoch, reply.Limits
	c.lease = time.Duration(reply.LeaseSeconds) * time.Second
	c.progress = &wire.Progress{CreditUpto: c.limits.GetCreditUpto(), CreditBytes: c.limits.GetCreditBytes()}
	if err == nil {
		err = c.link.run(1)
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
	if c.limits != nil { // else there is none
		err = c.link.unary("Close", &wire.CloseRequest{}, &wire.CloseReply{}, patience)
	}
	c.link.conn.Close()
	return err
}

// add gathers a command that makes handles, and returns them.
func (c *Client) add(command *wire.Command, made int) (handles []Tensor) {
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
	return handles
}

// codes puts a value into the command's pools, and returns its numbers as an operand and as an attribute.
func (c *Client) codes(value interface{}, command *wire.Command) (operand, attribute uint64) {
	const none = 1 << 62 // the value is no operand, or no attribute; the daemon refuses it
	switch value := value.(type) {
	case nil:
		return 0, 0
	case Tensor:
		return 2 * c.distances(value)[0], none
	case bool:
		on := map[bool]uint64{true: 1}[value]
		return 1 + 2*on, 1 + 8*on
	case int:
		command.Integers = append(command.Integers, int64(value))
		return 5, 2
	case float64:
		command.Reals = append(command.Reals, value)
		return 7, 3
	case []int64:
		command.Integers = append(command.Integers, value...)
		return none, 4 + 8*uint64(len(value))
	case string:
		command.Texts = append(command.Texts, value)
		return none, 5
	case DType:
		return none, 6 + 8*uint64(value)
	case Device:
		return none, 7 + 8*uint64(value)
	}
	panic(fmt.Sprintf("teletensor: %T cannot be an operand or an attribute", value))
}

// call issues an op; `made` is the number of its results. The methods of ops.go use it.
func (c *Client) call(op, made int, inplace bool, attributes []Attribute, operands ...Operand) []Tensor {
	command := &wire.Command{Op: uint32(op), Record: !c.noGrad, Inplace: inplace}
	for _, each := range operands {
		if list, isList := each.([]Tensor); isList {
			command.Counts = append(command.Counts, uint32(len(list)))
			for _, distance := range c.distances(list...) {
				command.Arguments = append(command.Arguments, 2*distance)
			}
		} else {
			code, _ := c.codes(each, command)
			command.Arguments = append(command.Arguments, code)
		}
	}
	for _, each := range attributes {
		_, code := c.codes(each, command)
		command.Attributes = append(command.Attributes, code)
	}
	if made != 1 && !inplace {
		command.Made = proto.Uint32(uint32(made))
	}
	return c.add(command, made)
}

// distances counts the handles back from the next one; 0 is no tensor.
func (c *Client) distances(tensors ...Tensor) (found []uint64) {
	for _, each := range tensors {
		if each.id != 0 {
			each.id = c.nextID - each.id
		}
		found = append(found, each.id)
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
	return c.add(command, 1)[0], nil
}

// RequireGrad says that gradients with respect to the tensor are wanted.
func (c *Client) RequireGrad(t Tensor) {
	c.add(&wire.Command{Other: &wire.Command_SetFlag{SetFlag: &wire.SetFlag{Handle: c.distances(t)[0], On: true}}}, 0)
}

// Gradients returns one for each input. `seed` is the gradient of the root; the zero Tensor means ones.
func (c *Client) Gradients(root, seed Tensor, inputs ...Tensor) []Tensor {
	return c.add(&wire.Command{Other: &wire.Command_Backward{Backward: &wire.Backward{
		Roots: c.distances(root), Seeds: c.distances(seed), Inputs: c.distances(inputs...),
		HasInputs: true, Made: uint32(len(inputs))}}}, len(inputs))
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
	for _, each := range tensors {
		delete(c.live, each.id)
	}
	c.add(&wire.Command{Other: &wire.Command_Release{Release: &wire.Release{Handles: c.distances(tensors...)}}}, 0)
}

// Forgive acknowledges a failure: what the failed commands wrote in place has its last good values again.
func (c *Client) Forgive(failure *LateError) {
	c.add(&wire.Command{Other: &wire.Command_Raise{Raise: &wire.Raise{Root: failure.Root}}}, 0)
}

func (c *Client) fetch(fetch *wire.Fetch) (*wire.Fetched, error) {
	seq := c.seq
	c.add(&wire.Command{Other: &wire.Command_Fetch{Fetch: fetch}}, 0)
	if err := c.until(func() bool { return c.fetched.GetSeq() == seq }); err != nil {
		return nil, err
	}
	if found := c.fetched; found.Code != 0 {
		return nil, &LateError{&wire.LateError{Root: found.Root, Code: found.Code, Text: found.Text}}
	}
	return c.fetched, nil
}

// Describe returns the element type and the shape of a tensor, without its elements.
func (c *Client) Describe(t Tensor) (DType, []int64, error) {
	found, err := c.fetch(&wire.Fetch{Handle: c.distances(t)[0], Describe: true})
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
		found, failed := c.fetch(&wire.Fetch{Handle: c.distances(t)[0]})
		data, err = found.GetData(), failed
	}
	if err == nil {
		err = binary.Read(bytes.NewReader(data), binary.LittleEndian, elements)
	}
	return elements, err
}

// Finish returns when all commands have run, with the first failure that it has not returned before.
func (c *Client) Finish() error {
	err := c.until(func() bool { return c.progress.CompletedUpto >= c.seq-1 })
	if err == nil && len(c.failures) > 0 {
		err, c.failures = c.failures[0], c.failures[1:]
	}
	return err
}
