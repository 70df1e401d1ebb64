package harness

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Talker is a process that is spoken to in JSON lines and answers in them; E is the type of its lines. All of them are shown
// when the test fails.
type Talker[E any] struct {
	*Process

	input io.WriteCloser

	lock    sync.Mutex
	partial []byte
	lines   [][]byte
	events  []E
	broken  error
	// next is the first event that no Await has passed.
	next int
	// arrived is sent to when events grew.
	arrived chan struct{}
}

// StartTalker keeps what the process says on standard error in a file in the directory.
func StartTalker[E any](t *testing.T, dir, bin string, args ...string) *Talker[E] {
	t.Helper()
	talker := &Talker[E]{arrived: make(chan struct{}, 1)}
	cmd := exec.Command(bin, args...)
	cmd.Stdout = listener[E]{talker}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	talker.input = input
	talker.Process = launch(t, dir, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("lines of %s:\n%s", filepath.Base(bin), bytes.Join(talker.said(), []byte("\n")))
		}
	})
	return talker
}

// Send writes a command.
func (k *Talker[E]) Send(t *testing.T, command any) {
	t.Helper()
	line, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.input.Write(append(line, '\n')); err != nil {
		t.Fatalf("%s does not listen: %v", filepath.Base(k.cmd.Path), err)
	}
}

// Await returns the next event that matches, counted from the last one that an Await returned.
func (k *Talker[E]) Await(t *testing.T, what string, limit time.Duration, match func(E) bool) E {
	t.Helper()
	deadline := time.After(limit)
	ended := k.Exited()
	for {
		event, found, err := k.advance(match)
		if err != nil {
			t.Fatal(err)
		}
		if found {
			return event
		}
		select {
		case <-k.arrived:
		case <-ended:
			ended = nil // What it said last is there by now: look once more.
			k.wake()
		case <-deadline:
			t.Fatalf("%s: not within %s: %s", filepath.Base(k.cmd.Path), limit, what)
		}
	}
}

// Events are all so far.
func (k *Talker[E]) Events() []E {
	k.lock.Lock()
	defer k.lock.Unlock()
	return append([]E(nil), k.events...)
}

func (k *Talker[E]) advance(match func(E) bool) (event E, found bool, err error) {
	k.lock.Lock()
	defer k.lock.Unlock()
	for k.broken == nil && k.next < len(k.events) {
		event = k.events[k.next]
		k.next++
		if match(event) {
			return event, true, nil
		}
	}
	return event, false, k.broken
}

func (k *Talker[E]) said() [][]byte {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.lines
}

func (k *Talker[E]) wake() {
	select {
	case k.arrived <- struct{}{}:
	default:
	}
}

// listener is the process's standard output.
type listener[E any] struct{ talker *Talker[E] }

func (l listener[E]) Write(written []byte) (int, error) {
	k := l.talker
	k.lock.Lock()
	defer k.lock.Unlock()
	k.partial = append(k.partial, written...)
	for {
		line, rest, found := bytes.Cut(k.partial, []byte("\n"))
		if !found {
			break
		}
		var event E
		if err := json.Unmarshal(line, &event); err != nil {
			k.broken = err
			break
		}
		k.lines, k.events = append(k.lines, bytes.Clone(line)), append(k.events, event)
		k.partial = rest
	}
	k.wake()
	return len(written), nil
}
