package teletensor

import (
	"fmt"
	"reflect"

	"teletensor/wire"
)

// DType is an element type of the protocol, as an attribute of an op.
type DType = wire.DType

// Device is an attribute of an op: kind * 256 + index; 0 is the daemon's host.
type Device uint32

// Tensor is a handle of a tensor in the client's session. The zero value is no tensor.
type Tensor struct{ id uint64 }

// distance says which handle it is, counted back from the next one; 0 is no tensor.
func (t Tensor) distance(next uint64) uint64 {
	if t.id == 0 {
		return 0
	}
	return next - t.id
}

// Operand is a Tensor, []Tensor, bool, int, float64, or nil for an absent operand.
type Operand interface{}

// Attribute is a bool, int, float64, []int64, string, DType, Device, or nil for none.
type Attribute interface{}

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

// encoder writes the operands and the attributes of one command; `next` is the id of the next handle.
type encoder struct {
	*wire.Command
	next uint64
}

// scalar gives the kind of an attribute, with x for a bool, and puts a number into its pool.
func (e *encoder) scalar(value interface{}) (kind, x uint64) {
	switch value := value.(type) {
	case nil:
		return 0, 0
	case bool:
		return 1, map[bool]uint64{true: 1}[value]
	case int:
		e.Integers = append(e.Integers, int64(value))
		return 2, 0
	case float64:
		e.Reals = append(e.Reals, value)
		return 3, 0
	}
	panic(fmt.Sprintf("teletensor: %T cannot be an operand or an attribute", value))
}

func (e *encoder) operand(value Operand) {
	switch value := value.(type) {
	case Tensor:
		e.Arguments = append(e.Arguments, 2*value.distance(e.next))
	case []Tensor:
		e.Counts = append(e.Counts, uint32(len(value)))
		for _, each := range value {
			e.operand(each)
		}
	default:
		kind, x := e.scalar(value)
		e.Arguments = append(e.Arguments, []uint64{0, 1 + 2*x, 5, 7}[kind])
	}
}

func (e *encoder) attribute(value Attribute) {
	code := uint64(0)
	switch value := value.(type) {
	case []int64:
		e.Integers, code = append(e.Integers, value...), 4+8*uint64(len(value))
	case string:
		e.Texts, code = append(e.Texts, value), 5
	case DType:
		code = 6 + 8*uint64(value)
	case Device:
		code = 7 + 8*uint64(value)
	default:
		kind, x := e.scalar(value)
		code = kind + 8*x
	}
	e.Attributes = append(e.Attributes, code)
}
