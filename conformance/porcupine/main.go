// Command porcupine reads histories of a map, one JSON array of operations a line, and prints for each whether
// Porcupine finds it linearizable: "ok", "illegal", or "unknown" where it takes too long.
//
// Tests compare its results with those of Guira's own checker.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// The time limit of one history. Histories are small, so it only ends hangs.
const limit = 30 * time.Second

// An operation, as the tests write it; pending if it has no answer.
type operation struct {
	Process    int    `json:"process"`
	Key        int64  `json:"key"`
	Call       string `json:"call"`
	Value      int64  `json:"value"`
	Expected   int64  `json:"expected"`
	CalledNs   int64  `json:"called_ns"`
	Answer     string `json:"answer"`
	Found      int64  `json:"found"`
	AnsweredNs int64  `json:"answered_ns"`
}

// The state of one key.
type state struct {
	exists bool
	value  int64
}

// apply applies a call to an atomic map, and returns its answer.
func apply(before state, call operation) (after state, answer string, found int64) {
	written := state{exists: true, value: call.Value}
	switch call.Call {
	case "get":
		if before.exists {
			return before, "found", before.value
		}
		return before, "absent", 0
	case "put":
		if before.exists {
			return written, "replaced", 0
		}
		return written, "inserted", 0
	case "insert":
		if before.exists {
			return before, "exists", 0
		}
		return written, "done", 0
	}
	if !before.exists {
		return before, "missing", 0
	}
	switch call.Call {
	case "update":
		return written, "done", 0
	case "remove":
		return state{}, "done", 0
	}
	if before.value != call.Expected {
		return before, "mismatch", 0
	}
	switch call.Call {
	case "compare_and_swap":
		return written, "done", 0
	case "compare_and_remove":
		return state{}, "done", 0
	}
	log.Fatalf("no such call: %q", call.Call)
	return state{}, "", 0
}

func step(before, input, output interface{}) (bool, interface{}) {
	call := input.(operation)
	after, answer, found := apply(before.(state), call)
	isAnyPut := call.Call == "put" && call.Answer == "done"
	isPending := call.Answer == ""
	return isPending || isAnyPut || (answer == call.Answer && found == call.Found), after
}

func partition(history []porcupine.Operation) [][]porcupine.Operation {
	place := make(map[int64]int)
	var keys [][]porcupine.Operation
	for _, one := range history {
		key := one.Input.(operation).Key
		at, isKnown := place[key]
		if !isKnown {
			at = len(keys)
			place[key] = at
			keys = append(keys, nil)
		}
		keys[at] = append(keys[at], one)
	}
	return keys
}

func main() {
	model := porcupine.Model{
		Partition: partition,
		Init:      func() interface{} { return state{} },
		Step:      step,
	}
	words := map[porcupine.CheckResult]string{
		porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "unknown",
	}
	in := bufio.NewReader(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for decoder := json.NewDecoder(in); decoder.More(); {
		var operations []operation
		if err := decoder.Decode(&operations); err != nil {
			log.Fatal(err)
		}
		var history []porcupine.Operation
		for _, one := range operations {
			returns := one.AnsweredNs
			if one.Answer == "" {
				// It may take effect at any time; after all others is equivalent to never.
				returns = math.MaxInt64
			}
			history = append(history, porcupine.Operation{
				ClientId: one.Process, Input: one, Call: one.CalledNs, Return: returns,
			})
		}
		fmt.Fprintln(out, words[porcupine.CheckOperationsTimeout(model, history, limit)])
	}
}
