package kubelet

import (
	"encoding/json"
	"flag"
	"net/http"
	"path/filepath"
	"regexp"
	"sort"
	"testing"
	"time"

	"interop/harness"
	"interop/kubelet/common/protocol"
)

var managerBin = flag.String("manager", "", "path of our kubelet-plugin-manager")

// life is one process that is a kubelet, from its start to its end, whosever code it is made of.
type life struct {
	process *harness.Process
	// began is when it made its first pass.
	began time.Time
	// events are all so far, with what both kinds of kubelets tell.
	events func() []observed
	// state is the sockets of either state of world, sorted.
	state func(t *testing.T) (desired, actual []string)
	// stop ends it as a kubelet ends, with exit code 0.
	stop func(t *testing.T)
}

// observed is an event with its time read.
type observed struct {
	at time.Time
	protocol.KubeletEvent
}

// startKubelet is the kubelet's own code on a fresh cluster; it returns when the directory was traversed.
func startKubelet(t *testing.T, node *harness.Node, release release) *life {
	t.Helper()
	objects := filepath.Join(t.TempDir(), "objects.json")
	kubelet := harness.StartTalker[protocol.KubeletEvent](t, node.Root, filepath.Join(*kubeletDir, release.name),
		"-dir="+node.RegistrationDir, "-objects="+objects)
	await := func(t *testing.T, event string) protocol.KubeletEvent {
		t.Helper()
		return kubelet.Await(t, event, patience, func(e protocol.KubeletEvent) bool { return e.Event == event })
	}
	await(t, protocol.ManagerStarted)
	return &life{
		process: kubelet.Process,
		events: func() []observed {
			var all []observed
			for _, event := range kubelet.Events() {
				all = append(all, observed{parseTime(event.At), event})
			}
			return all
		},
		state: func(t *testing.T) (desired, actual []string) {
			t.Helper()
			kubelet.Send(t, protocol.KubeletCommand{Command: protocol.TakeSnapshot})
			snapshot := await(t, protocol.Snapshot)
			return snapshot.Desired, snapshot.Actual
		},
		stop: func(t *testing.T) {
			t.Helper()
			kubelet.Send(t, protocol.KubeletCommand{Command: protocol.StopKubelet})
			wantExit(t, kubelet.Process, 0)
		},
	}
}

// managerLine is a line of `kubelet-plugin-manager run --output json`, as far as a kubelet tells the same.
type managerLine struct {
	// Time is seconds since 1970.
	Time      float64 `json:"time"`
	Event     string  `json:"event"`
	Socket    string  `json:"socket"`
	Operation string  `json:"operation"`
	Error     string  `json:"error"`
	// Name is the driver's, of a deregistration.
	Name           string          `json:"name"`
	BackoffSeconds float64         `json:"backoff_seconds"`
	Plugin         managerPlugin   `json:"plugin"`
	Node           json.RawMessage `json:"node"`
	CSINode        json.RawMessage `json:"csi_node"`
}

type managerPlugin struct {
	Name string `json:"name"`
}

// managerState is /state, as far as it is compared.
type managerState struct {
	Desired []managerSocket `json:"desired_state_of_world"`
	Actual  []managerSocket `json:"actual_state_of_world"`
}

type managerSocket struct {
	Path string `json:"socket_path"`
}

// listening is how the manager tells where its diagnostics are.
var listening = regexp.MustCompile(`"HTTP server listening" endpoint="(127\.0\.0\.1:\d+)"`)

// startManager is our plugin manager under the release's profile, likewise.
func startManager(t *testing.T, node *harness.Node, release release) *life {
	t.Helper()
	if *managerBin == "" {
		t.Fatal("-manager is not given; the run script beside the tests builds what they need and starts them")
	}
	manager := harness.StartTalker[managerLine](t, node.Root, *managerBin, "run",
		"--profile="+release.name, "--registration-dir="+node.RegistrationDir, "--output=json", "--http-endpoint=127.0.0.1:0")
	manager.Await(t, "watching", patience, func(line managerLine) bool { return line.Event == "watching" })
	endpoint := listening.FindStringSubmatch(manager.Output())
	if endpoint == nil {
		t.Fatal("the manager does not tell where it listens")
	}
	return &life{
		process: manager.Process,
		events:  func() []observed { return translate(t, manager.Events()) },
		state: func(t *testing.T) (desired, actual []string) {
			t.Helper()
			state := fetchState(t, "http://"+endpoint[1]+"/state")
			return paths(state.Desired), paths(state.Actual)
		},
		stop: func(t *testing.T) {
			t.Helper()
			manager.Terminate(t)
			wantExit(t, manager.Process, 0)
		},
	}
}

func fetchState(t *testing.T, url string) (state managerState) {
	t.Helper()
	client := http.Client{Timeout: patience}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&state); err != nil {
		t.Fatal(err)
	}
	return state
}

func paths(sockets []managerSocket) []string {
	var all []string
	for _, socket := range sockets {
		all = append(all, socket.Path)
	}
	sort.Strings(all)
	return all
}

// translate says in the kubelet programs' words what the manager said in its own.
func translate(t *testing.T, lines []managerLine) []observed {
	t.Helper()
	var all []observed
	// The handler's results name the socket; the kubelet's handler knows names only.
	names := map[string]string{}
	for _, line := range lines {
		event := protocol.KubeletEvent{Socket: line.Socket, Error: line.Error}
		switch line.Event {
		case "watching":
			event.Event = protocol.ManagerStarted
		case "desired":
			event.Event = protocol.DesiredSet
		case "undesired":
			event.Event = protocol.DesiredRemoved
		case "operation_started":
			event.Event, event.Operation = protocol.OperationStarted, line.Operation
		case "operation_failed":
			event.Event = protocol.OperationFailed
			event.Backoff = time.Duration(line.BackoffSeconds * float64(time.Second)).String()
		case "info_received":
			names[line.Socket] = line.Plugin.Name
			continue
		case "handler_registered", "handler_refused":
			event.Event, event.Call, event.Name = protocol.HandlerReturned, protocol.Register, names[line.Socket]
		case "deregistered":
			event.Event, event.Call, event.Name = protocol.HandlerReturned, protocol.Deregister, line.Name
		case "node_written":
			event.Event, event.Node = protocol.NodeWritten, line.Node
		case "csi_node_written":
			event.Event, event.CSINode = protocol.CSINodeWritten, line.CSINode
		case "lost":
			t.Fatal("the manager's events were not read in time")
		default:
			continue
		}
		at := time.UnixMicro(int64(line.Time * 1e6))
		all = append(all, observed{at, event})
	}
	return all
}
