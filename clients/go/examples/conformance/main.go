// conformance ADDRESS NAME runs the client's program of a transcript of the conformance kit (docs/wire.md), for a
// fake daemon at the address, and checks what the client returns.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"reflect"
	"time"

	tt "teletensor"
)

var programs = map[string]func(*tt.Client) error{
	"client_ops": ops, "client_gradients": gradients, "client_late_error": lateError, "client_cut": cut,
	"client_bulk": bulk,
}

func main() {
	flag.Parse()
	client, err := tt.Open(flag.Arg(0), tt.Options{Lease: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	err = programs[flag.Arg(1)](client)
	if closed := client.Close(); err == nil {
		err = closed
	}
	if err != nil {
		log.Fatal(err)
	}
}

// expect reads a tensor and compares its elements.
func expect(client *tt.Client, tensor tt.Tensor, wanted ...float32) error {
	found, err := tt.Read[float32](client, tensor)
	if err == nil && !reflect.DeepEqual(found, wanted) {
		err = fmt.Errorf("%v expected, %v found", wanted, found)
	}
	return err
}

func ops(client *tt.Client) error {
	x, err := tt.New(client, []float32{1, 2, 3, 4}, 2, 2)
	if err != nil {
		return err
	}
	y := client.Mul(client.Mul(x, x), 2.5)
	if err := expect(client, y, 2.5, 10, 22.5, 40); err != nil {
		return err
	}
	if err := expect(client, client.Sum(y, []int64{1}, true), 12.5, 62.5); err != nil {
		return err
	}
	return expect(client, client.Sum(x), 10)
}

func gradients(client *tt.Client) error {
	a, err := tt.New(client, []float32{1, 2})
	if err != nil {
		return err
	}
	client.RequireGrad(a)
	b, err := tt.New(client, []float32{3, 5})
	if err != nil {
		return err
	}
	client.RequireGrad(b)
	grads := client.Gradients(client.Sum(client.Mul(a, b)), tt.Tensor{}, b, a)
	if err := expect(client, grads[0], 1, 2); err != nil {
		return err
	}
	return expect(client, grads[1], 3, 5)
}

func lateError(client *tt.Client) error {
	x, err := tt.New(client, []float32{1, 2})
	if err != nil {
		return err
	}
	three, err := tt.New(client, []float32{1, 2, 3})
	if err != nil {
		return err
	}
	_, err = tt.Read[float32](client, client.Neg(client.Matmul(x, three)))
	var late *tt.LateError
	if !errors.As(err, &late) || late.Root != 3 || late.Code != 3 {
		return fmt.Errorf("command 3 should have failed with code 3: %v", err)
	}
	return expect(client, client.Neg(x), -1, -2)
}

func cut(client *tt.Client) error {
	x, err := tt.New(client, []float32{4, 5})
	if err != nil {
		return err
	}
	y := client.Neg(x)
	if err := expect(client, y, -4, -5); err != nil {
		return err
	}
	return expect(client, client.Neg(y), 4, 5)
}

func bulk(client *tt.Client) error {
	x, err := tt.New(client, []float32{1, 2, 3, 4})
	if err != nil {
		return err
	}
	return expect(client, client.Neg(x), -1, -2, -3, -4)
}
