// sin2 ADDRESS trains a network of two layers to compute sin(x)^2, and prints the mean loss of each epoch.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand"
	"os"
	"time"

	tt "teletensor"
)

var (
	rate     = flag.Float64("rate", 0.001, "learning rate")
	momentum = flag.Float64("momentum", 0, "momentum of SGD")
	epochs   = flag.Int("epochs", 10, "number of epochs")
	weights  = flag.String("weights", "", "JSON file with the initial weights by name (default: random ones)")
)

// layers has the names and shapes of the parameters.
var layers = []struct {
	name  string
	shape []int64
}{{"0.weight", []int64{10, 1}}, {"0.bias", []int64{10}}, {"2.weight", []int64{1, 10}}, {"2.bias", []int64{1}}}

func main() {
	flag.Parse()
	client, err := tt.Open(flag.Arg(0), tt.Options{Token: os.Getenv("TELETENSOR_TOKEN"), Lease: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := train(client); err != nil {
		log.Print(err)
		client.Close()
		os.Exit(1)
	}
}

func train(client *tt.Client) error {
	params, buffers, err := parameters(client)
	if err != nil {
		return err
	}
	x, y := make([]float32, 51), make([]float32, 51)
	for i := range x {
		x[i] = float32(i) * 0.4
		y[i] = float32(math.Pow(math.Sin(float64(x[i])), 2))
	}
	xs, err := tt.New(client, x, 51, 1)
	if err != nil {
		return err
	}
	ys, err := tt.New(client, y, 51, 1)
	if err != nil {
		return err
	}
	first := true
	for epoch := 0; epoch < *epochs; epoch++ {
		losses := []tt.Tensor{}
		for i := range x {
			losses = append(losses, client.Scope(func() []tt.Tensor {
				sample, target := client.Select(xs, 0, i), client.Select(ys, 0, i)
				return step(client, params, buffers, sample, target, first)
			})...)
			first = false
		}
		mean := client.Mean(client.Stack(losses))
		value, err := tt.Read[float32](client, mean)
		if err != nil {
			return err
		}
		client.Release(append(losses, mean)...)
		fmt.Println(value[0])
	}
	return client.Finish()
}

// step trains with one sample and returns its loss.
func step(client *tt.Client, params, buffers []tt.Tensor, x, y tt.Tensor, first bool) []tt.Tensor {
	hidden := client.Sigmoid(client.Linear(x, params[0], params[1]))
	loss := client.MseLoss(client.Linear(hidden, params[2], params[3]), y)
	grads := client.Gradients(loss, tt.Tensor{}, params...)
	client.NoGrad(func() {
		client.SgdStep(params, grads, buffers, *rate, *momentum, 0.0, 0.0, 0.0, false, false, first)
	})
	return []tt.Tensor{client.Detach(loss)}
}

// parameters returns the parameters, and the buffers of momentum if there is one.
func parameters(client *tt.Client) (params, buffers []tt.Tensor, err error) {
	initial := map[string][]float32{}
	if *weights != "" {
		text, err := os.ReadFile(*weights)
		if err == nil {
			err = json.Unmarshal(text, &initial)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	for _, layer := range layers {
		count := layer.shape[0]
		if len(layer.shape) == 2 {
			count *= layer.shape[1]
		}
		values := initial[layer.name]
		for int64(len(values)) < count {
			values = append(values, 2*rand.Float32()-1)
		}
		param, err := tt.New(client, values, layer.shape...)
		if err != nil {
			return nil, nil, err
		}
		client.RequireGrad(param)
		params = append(params, param)
		if *momentum != 0 {
			buffers = append(buffers, client.Full(0.0, layer.shape))
		}
	}
	return params, buffers, nil
}
