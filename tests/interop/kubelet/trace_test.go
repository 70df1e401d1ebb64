package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"interop/kubelet/common/protocol"
)

// trace is what happened, by who tells it or whom it concerns: within one such stream the order counts.
type trace map[string][]entry

// entry is compared by its text, which begins with the number of steps done before it.
type entry struct {
	text string
	// at is since the start of the kubelet that lived then, for people.
	at time.Duration
}

func sameText(a, b entry) bool { return a.text == b.text }

func (w *world) trace(s sequence) trace {
	t := trace{}
	add := func(stream string, at time.Time, line string) {
		if at.After(w.end) {
			return
		}
		text := fmt.Sprintf("%d %s", w.stepsBefore(at), w.anonymous(line))
		t[stream] = append(t[stream], entry{text, at.Sub(w.beganBefore(at))})
	}
	for number, plugin := range w.plugins {
		traceCalls(plugin.Events(), func(at time.Time, line string) {
			add(fmt.Sprintf("plugin %d (%s)", number, s.sockets[number]), at, line)
		})
	}
	for _, life := range w.lives {
		traceKubelet(life.events(), func(stream string, at time.Time, line string) { add(w.anonymous(stream), at, line) })
	}
	for _, look := range w.looks {
		add("state", look.at, fmt.Sprintf("desired %v, registered %v", look.desired, look.actual))
	}
	return t
}

func (w *world) beganBefore(at time.Time) time.Time {
	began := w.lives[0].began
	for _, life := range w.lives {
		if life.began.Before(at) {
			began = life.began
		}
	}
	return began
}

func (w *world) stepsBefore(at time.Time) int {
	n, _ := slices.BinarySearchFunc(w.steps, at, time.Time.Compare)
	return n
}

// anonymous replaces the directory, which differs from world to world.
func (w *world) anonymous(text string) string {
	text = strings.ReplaceAll(text, url.PathEscape(w.Root), "ENCODED-ROOT")
	return strings.ReplaceAll(text, w.Root, "ROOT")
}

// traceCalls tells the calls that a plugin and its driver get, which share their connections and what they were answered.
func traceCalls(events []protocol.PluginEvent, add func(time.Time, string)) {
	// Connections are numbered by their first call: those that carry none are no matter.
	connections := map[int]int{}
	for _, event := range events {
		at := parseTime(event.At)
		switch event.Event {
		case protocol.Called:
			if connections[event.Connection] == 0 {
				connections[event.Connection] = len(connections) + 1
			}
			line := fmt.Sprintf("%s on connection %d to %s", event.Method, connections[event.Connection], event.Authority)
			if event.Registered != nil {
				line += fmt.Sprintf(": %t %q", *event.Registered, class(event.Error))
			}
			add(at, line)
		case protocol.Answered:
			add(at, event.Method+" answered: "+gaveUp(event.Code))
		}
	}
}

// gaveUp makes one of the two codes under which a server hears that its client waits no more: its own clock and the
// client's word come at the same time.
func gaveUp(code string) string {
	if code == "DeadlineExceeded" || code == "Canceled" {
		return "given up"
	}
	return code
}

// traceKubelet tells what a kubelet says, from streams that no other part of it interferes with.
func traceKubelet(events []observed, add func(stream string, at time.Time, line string)) {
	desired := map[string]bool{}
	for _, event := range events {
		switch event.Event {
		case protocol.DesiredSet:
			desired[event.Socket] = true
			add("desired "+event.Socket, event.at, "set")
		case protocol.DesiredRemoved:
			// The kubelet also tells the removal of files that were never desired.
			if desired[event.Socket] {
				add("desired "+event.Socket, event.at, "removed")
			}
			delete(desired, event.Socket)
		case protocol.OperationStarted:
			add("operations "+event.Socket, event.at, event.Operation)
		case protocol.OperationFailed:
			add("failures "+event.Socket, event.at, fmt.Sprintf("%q, backoff %s", class(event.Error), event.Backoff))
		case protocol.HandlerReturned:
			if event.Call != protocol.Validate {
				add("handler", event.at, fmt.Sprintf("%s %s: %q", event.Call, event.Name, class(event.Error)))
			}
		case protocol.NodeWritten:
			add("objects", event.at, "Node "+describeNode(event.Node)+event.Error)
		case protocol.CSINodeWritten:
			add("objects", event.at, "CSINode "+describeCSINode(event.CSINode)+event.Error)
		case protocol.Log:
			add(warnings, event.at, event.Text)
		}
	}
}

var (
	// A broken connection has words of its own in each release of gRPC. The fake plugin's begin with "fault".
	transport = regexp.MustCompile(`(rpc error: code = Unavailable desc = )(?:[^f].*|f[^a].*)`)
	// A call whose time is over ends by the client's clock or by the server's, whichever is faster.
	timeout = regexp.MustCompile(`rpc error: code = (?:DeadlineExceeded|Canceled) desc = .*`)
	// The call stack.
	panicked = regexp.MustCompile(`(?s)(recovered from panic ".*?").*`)
)

// class is an error text without what depends on the gRPC library or the Go compiler.
func class(text string) string {
	text = panicked.ReplaceAllString(text, "$1")
	text = timeout.ReplaceAllString(text, "rpc error: given up")
	return transport.ReplaceAllString(text, "$1...")
}

// describeNode tells what registration may change: ids and labels but the one that a node is made with.
func describeNode(encoded json.RawMessage) string {
	var node corev1.Node
	if err := json.Unmarshal(encoded, &node); err != nil {
		return err.Error()
	}
	labels := maps.Clone(node.Labels)
	delete(labels, corev1.LabelHostname)
	return fmt.Sprintf("%s labels %v", node.Annotations[nodeIDAnnotation], labels)
}

// describeCSINode leaves out what an API server adds.
func describeCSINode(encoded json.RawMessage) string {
	var csiNode storagev1.CSINode
	if err := json.Unmarshal(encoded, &csiNode); err != nil {
		return err.Error()
	}
	text := fmt.Sprint(csiNode.Annotations)
	for _, owner := range csiNode.OwnerReferences {
		text += fmt.Sprintf(" of %s %s %s", owner.APIVersion, owner.Kind, owner.Name)
	}
	for _, driver := range csiNode.Spec.Drivers {
		limit := "unlimited"
		if driver.Allocatable != nil && driver.Allocatable.Count != nil {
			limit = fmt.Sprint(*driver.Allocatable.Count)
		}
		text += fmt.Sprintf("; %s %s %v %s", driver.Name, driver.NodeID, driver.TopologyKeys, limit)
	}
	return text
}

// warnings are not compared, only told beside a difference: each kubelet has words of its own.
const warnings = "warnings"

// wantSame reports every stream that differs, both in full.
func wantSame(t *testing.T, s sequence, want, got trace) {
	t.Helper()
	streams := maps.Clone(want)
	maps.Copy(streams, got)
	for _, stream := range slices.Sorted(maps.Keys(streams)) {
		if stream == warnings || slices.EqualFunc(want[stream], got[stream], sameText) {
			continue
		}
		t.Errorf("%s: %s\nkubelet:\n%s\nmanager:\n%s", s.name, stream, numbered(want[stream], got[stream]), numbered(got[stream], want[stream]))
	}
	if t.Failed() {
		t.Logf("warnings\nkubelet:\n%s\nmanager:\n%s", numbered(want[warnings], nil), numbered(got[warnings], nil))
		t.Log(s)
	}
}

// numbered marks the first line that the other lacks.
func numbered(lines, other []entry) string {
	var text strings.Builder
	same := true
	for i, line := range lines {
		mark := "  "
		if same && (i >= len(other) || !sameText(other[i], line)) {
			mark, same = "> ", false
		}
		fmt.Fprintf(&text, "%s%6.3f %s\n", mark, line.at.Seconds(), line.text)
	}
	return text.String()
}

func (s sequence) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "sequence %s on %v\n", s.name, s.sockets)
	for _, action := range s.before {
		fmt.Fprintf(&text, "  before: %s\n", action.what)
	}
	for i, step := range s.steps {
		for _, action := range step.actions {
			fmt.Fprintf(&text, "  %d after %d s: %s\n", i+1, step.wait, action.what)
		}
	}
	fmt.Fprintf(&text, "  end after %d s", s.rest)
	return text.String()
}
