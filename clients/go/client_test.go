package teletensor

import (
	"errors"
	"math"
	"os"
	"reflect"
	"testing"
	"time"

	"teletensor/wire"
)

// open opens a session of the daemon at TELETENSOR_ADDRESS.
func open(t *testing.T) *Client {
	t.Helper()
	client, err := Open(os.Getenv("TELETENSOR_ADDRESS"), Options{Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func constant[T Element](t *testing.T, client *Client, elements []T, shape ...int64) Tensor {
	t.Helper()
	tensor, err := New(client, elements, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return tensor
}

func expect(t *testing.T, client *Client, tensor Tensor, wanted ...float32) {
	t.Helper()
	found, err := Read[float32](client, tensor)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(wanted) {
		t.Fatalf("%v expected, %v found", wanted, found)
	}
	for i := range found {
		if math.Abs(float64(found[i]-wanted[i])) > 1e-5 {
			t.Fatalf("%v expected, %v found", wanted, found)
		}
	}
}

func TestGradients(t *testing.T) {
	client := open(t)
	a, b := constant(t, client, []float32{2}), constant(t, client, []float32{5})
	client.RequireGrad(a)
	client.RequireGrad(b)
	y := client.Sub(client.Add(client.Log(a), client.Mul(a, b)), client.Sin(b))
	grads := client.Gradients(y, Tensor{}, a, b)
	expect(t, client, y, 11.652071)
	expect(t, client, grads[0], 5.5)
	expect(t, client, grads[1], 1.7163378)
	doubled := client.Gradients(client.Mul(a, a), constant(t, client, []float32{3}), a)
	expect(t, client, doubled[0], 12)
	client.NoGrad(func() { y = client.Mul(a, b) })
	client.Gradients(y, Tensor{}, a)
	var late *LateError
	if err := client.Finish(); !errors.As(err, &late) {
		t.Fatalf("a backward of what was not recorded: %v", err)
	}
}

func TestOperandsAndAttributes(t *testing.T) {
	client := open(t)
	x := constant(t, client, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	expect(t, client, client.Sum(x, []int64{1}), 6, 15)
	expect(t, client, client.Sum(x, []int64{0}, true), 5, 7, 9)
	expect(t, client, client.Clamp(x, nil, 3), 1, 2, 3, 3, 3, 3)
	expect(t, client, client.Add(x, 1, 2), 3, 4, 5, 6, 7, 8)
	expect(t, client, client.Cat(client.Unbind(x, 2, 0)), 1, 2, 3, 4, 5, 6)
	expect(t, client, client.MseLoss(x, client.Mul(x, 0), "sum"), 91)
	client.AddInPlace(x, 1)
	expect(t, client, x, 2, 3, 4, 5, 6, 7)
	both := client.Sort(constant(t, client, []float32{3, 1, 2}))
	expect(t, client, both[0], 1, 2, 3)
	dtype, shape, err := client.Describe(both[1])
	if err != nil || dtype != wire.DType_DTYPE_INT64 || !reflect.DeepEqual(shape, []int64{3}) {
		t.Fatal(dtype, shape, err)
	}
	order, err := Read[int64](client, both[1])
	if err != nil || !reflect.DeepEqual(order, []int64{1, 2, 0}) {
		t.Fatal(order, err)
	}
}

func TestLateErrors(t *testing.T) {
	client := open(t)
	x := constant(t, client, []float32{1, 2})
	bad := client.Matmul(x, constant(t, client, []float32{1, 2, 3}))
	_, err := Read[float32](client, client.Neg(bad))
	var late *LateError
	if !errors.As(err, &late) || late.Root != 3 || late.Code != 3 {
		t.Fatal(err)
	}
	if err := client.Finish(); !errors.As(err, &late) || late.Root != 3 {
		t.Fatal(err)
	}
	if err := client.Finish(); err != nil {
		t.Fatalf("a failure was returned twice: %v", err)
	}
	client.AddInPlace(x, bad)
	if _, err = Read[float32](client, x); !errors.As(err, &late) {
		t.Fatal(err)
	}
	client.Forgive(late)
	expect(t, client, x, 1, 2)
}

// A value that travels by Upload and Download, and thousands of commands in frames within the limits.
func TestBulkAndManyCommands(t *testing.T) {
	client := open(t)
	elements := make([]float64, 3<<20)
	for i := range elements {
		elements[i] = float64(i)
	}
	large := constant(t, client, elements, 3, 1<<20)
	found, err := Read[float64](client, client.Add(large, 1))
	if err != nil || found[0] != 1 || found[len(found)-1] != 3<<20 {
		t.Fatal(err)
	}
	x := constant(t, client, []float32{0})
	kept := client.Scope(func() []Tensor {
		sum := x
		for i := 0; i < 20000; i++ {
			sum = client.Add(sum, 1)
		}
		return []Tensor{sum}
	})
	expect(t, client, kept[0], 20000)
	if err := client.Finish(); err != nil {
		t.Fatal(err)
	}
}

func TestAClosedSessionSaysSo(t *testing.T) {
	client, err := Open(os.Getenv("TELETENSOR_ADDRESS"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(client, []float32{1}); err != nil {
		t.Fatal(err)
	}
	if err := client.Finish(); err == nil {
		t.Fatal("no error of a closed session")
	}
	if _, err := New(client, make([]float32, 1<<20)); err == nil {
		t.Fatal("a closed session has taken an upload")
	}
}

func TestWrongGoTypes(t *testing.T) {
	client := open(t)
	if _, err := Read[int64](client, constant(t, client, []float32{1})); err == nil {
		t.Fatal("float32 was read as int64")
	}
	defer func() {
		if told := recover(); told != "teletensor: float32 cannot be an operand or an attribute" {
			t.Fatal(told)
		}
	}()
	client.Add(constant(t, client, []float32{1}), float32(1))
}

// A tensor that a scope returns without having made it stays the caller's.
func TestScopes(t *testing.T) {
	client := open(t)
	x := constant(t, client, []float32{3})
	var inner, gone Tensor
	kept := client.Scope(func() []Tensor {
		y := client.Neg(x)
		inner = client.Scope(func() []Tensor {
			gone = client.Neg(y)
			return []Tensor{client.Neg(gone), x}
		})[0]
		return []Tensor{y}
	})
	expect(t, client, x, 3)
	expect(t, client, kept[0], -3)
	for _, released := range []Tensor{inner, gone} {
		if _, err := Read[float32](client, released); err == nil {
			t.Fatal("a tensor is still there")
		}
	}
}
