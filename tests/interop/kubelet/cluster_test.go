package kubelet

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"interop/harness"
	"interop/kubelet/common/protocol"
)

var (
	kubeletDir    = flag.String("kubelets", "", "directory with a program for each release")
	fakePluginBin = flag.String("fakeplugin", "", "path of the fake plugin")
	slow          = flag.Duration("slow", 30*time.Second, "how long a slow NodeGetInfo takes; the kubelet gives up after 2m")
)

const (
	// patience bounds all that a kubelet does by itself: its pass each second, a dial of 10 s to a socket that is gone, and the
	// first delays between its attempts.
	patience = 60 * time.Second
	// exitLimit bounds the registrar's end, the 2 s included that it gives a call in flight.
	exitLimit = 5 * time.Second
)

// nodeIDAnnotation is where the kubelet keeps the drivers' node ids, on the Node.
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// release is a Kubernetes release as far as the scenarios end differently.
type release struct {
	name string
	// unregisters tells that the removal of a socket is enough; before 1.19 the plugin is asked its name once more.
	unregisters bool
	// retries tells that a registration is attempted again when only the plugin's answer to its notification was wrong.
	retries bool
	// panicsWithoutNodeID tells that a driver without one makes the operation panic.
	panicsWithoutNodeID bool
	// nodeGetInfoAttempts is how often one registration asks a driver that fails, with a second between the first two and twice
	// as long each time; nodeGetInfoFailure is what the plugin is told in the end.
	nodeGetInfoAttempts int
	nodeGetInfoFailure  string
	// encodes tells that :authority is the socket's path percent-encoded.
	encodes bool
}

// nodeGetInfoReason is what a driver tells that fails.
const nodeGetInfoReason = "no metadata service"

var releases = []release{
	{
		name: "v1.37", unregisters: true, encodes: true, retries: true,
		nodeGetInfoAttempts: 1, nodeGetInfoFailure: "rpc error: code = Internal desc = " + nodeGetInfoReason,
	},
	{
		name: "v1.28", unregisters: true,
		nodeGetInfoAttempts: 1, nodeGetInfoFailure: "rpc error: code = Internal desc = " + nodeGetInfoReason,
	},
	{
		name: "v1.17", panicsWithoutNodeID: true,
		nodeGetInfoAttempts: 5, nodeGetInfoFailure: "timed out waiting for the condition",
	},
}

// everyRelease runs the scenario under each, side by side: most of the time is waiting.
func everyRelease(t *testing.T, scenario func(*testing.T, *cluster)) {
	t.Parallel()
	for _, release := range releases {
		t.Run(release.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, release)
			scenario(t, c)
			c.stop(t)
		})
	}
}

// cluster is a node, the kubelet's code that watches it, and the API server in that process.
type cluster struct {
	*harness.Node
	release release
	kubelet *harness.Talker[protocol.KubeletEvent]
}

func newCluster(t *testing.T, release release) *cluster {
	t.Helper()
	if *kubeletDir == "" || *fakePluginBin == "" {
		t.Fatal("-kubelets and -fakeplugin are required; the run script beside the tests builds what they need and starts them")
	}
	c := &cluster{Node: harness.NewNode(t), release: release}
	c.kubelet = harness.StartTalker[protocol.KubeletEvent](t, c.Root, filepath.Join(*kubeletDir, release.name),
		"-dir="+c.RegistrationDir, "-objects="+filepath.Join(c.Root, "objects.json"))
	c.await(t, protocol.KubeletEvent{Event: protocol.ManagerStarted})
	return c
}

// await returns the next event that has what the wanted one has; fields that are empty there may be anything.
func (c *cluster) await(t *testing.T, want protocol.KubeletEvent) protocol.KubeletEvent {
	t.Helper()
	described, _ := json.Marshal(want) // An event has an encoding.
	return c.kubelet.Await(t, string(described), patience, func(got protocol.KubeletEvent) bool {
		return got.Event == want.Event &&
			(want.Socket == "" || got.Socket == want.Socket) &&
			(want.Operation == "" || got.Operation == want.Operation) &&
			(want.Call == "" || got.Call == want.Call) &&
			(want.Registered == nil || got.Registered != nil && *got.Registered == *want.Registered)
	})
}

// awaitRegistered returns when the handler has taken the driver and the plugin was told so and has answered.
func (c *cluster) awaitRegistered(t *testing.T) {
	t.Helper()
	c.awaitNotification(t, true)
}

// awaitRefused returns what the plugin is told.
func (c *cluster) awaitRefused(t *testing.T) string {
	t.Helper()
	return c.awaitNotification(t, false).Error
}

func (c *cluster) awaitNotification(t *testing.T, registered bool) protocol.KubeletEvent {
	t.Helper()
	notification := c.await(t, protocol.KubeletEvent{Event: protocol.Notification, Registered: &registered})
	c.await(t, protocol.KubeletEvent{Event: protocol.NotificationAnswered})
	return notification
}

// awaitUnregistered returns when the removal of the registration socket has had its effect, of which there is none before 1.19.
func (c *cluster) awaitUnregistered(t *testing.T) {
	t.Helper()
	c.await(t, protocol.KubeletEvent{Event: protocol.DesiredRemoved, Socket: c.RegistrationSocket})
	c.await(t, protocol.KubeletEvent{Event: protocol.OperationStarted, Operation: protocol.Unregister, Socket: c.RegistrationSocket})
	if !c.release.unregisters {
		failed := c.await(t, protocol.KubeletEvent{Event: protocol.OperationFailed, Socket: c.RegistrationSocket})
		wantText(t, failed.Error, "UnregisterPlugin error -- dial failed at socket "+c.RegistrationSocket)
	}
}

// settle returns when the kubelet has dealt with all events of the directory so far: it deals with them in order, and tells
// the removal of any file.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	marker := filepath.Join(c.RegistrationDir, "marker")
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(marker); err != nil {
		t.Fatal(err)
	}
	c.await(t, protocol.KubeletEvent{Event: protocol.DesiredRemoved, Socket: marker})
}

// wantState compares everything that the kubelet has come to: the sockets, and the driver on the Node and the CSINode.
func (c *cluster) wantState(t *testing.T, sockets []string, drivers ...storagev1.CSINodeDriver) {
	t.Helper()
	c.wantStates(t, sockets, sockets, drivers...)
}

func (c *cluster) wantStates(t *testing.T, desired, actual []string, drivers ...storagev1.CSINodeDriver) {
	t.Helper()
	c.kubelet.Send(t, protocol.KubeletCommand{Command: protocol.TakeSnapshot})
	got := c.await(t, protocol.KubeletEvent{Event: protocol.Snapshot})
	if !slices.Equal(got.Desired, desired) {
		t.Errorf("desired are %v, want %v", got.Desired, desired)
	}
	if !slices.Equal(got.Actual, actual) {
		t.Errorf("registered are %v, want %v", got.Actual, actual)
	}
	var csiNode storagev1.CSINode
	if err := json.Unmarshal(got.CSINode, &csiNode); err != nil {
		t.Fatalf("CSINode: %v", err)
	}
	if !slices.EqualFunc(csiNode.Spec.Drivers, drivers, func(a, b storagev1.CSINodeDriver) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("the CSINode's drivers are %v, want %v", csiNode.Spec.Drivers, drivers)
	}
	var node corev1.Node
	if err := json.Unmarshal(got.Node, &node); err != nil {
		t.Fatalf("Node: %v", err)
	}
	ids := map[string]string{}
	if annotation := node.Annotations[nodeIDAnnotation]; annotation != "" {
		if err := json.Unmarshal([]byte(annotation), &ids); err != nil {
			t.Fatalf("annotation %s: %v", nodeIDAnnotation, err)
		}
	}
	wantIDs := map[string]string{}
	for _, driver := range drivers {
		wantIDs[driver.Name] = driver.NodeID
		for _, key := range driver.TopologyKeys {
			if node.Labels[key] == "" {
				t.Errorf("the node's labels %v lack %s", node.Labels, key)
			}
		}
	}
	if !reflect.DeepEqual(ids, wantIDs) {
		t.Errorf("annotation %s is %v, want %v", nodeIDAnnotation, ids, wantIDs)
	}
}

// wantFailures compares the operations that failed: a registration that failed late, as one whose notification was not
// answered, leaves no other trace before 1.36.
func (c *cluster) wantFailures(t *testing.T, texts ...string) {
	t.Helper()
	var failures []string
	for _, event := range c.kubelet.Events() {
		if event.Event == protocol.OperationFailed {
			failures = append(failures, event.Error)
		}
	}
	if !slices.EqualFunc(failures, texts, strings.Contains) {
		t.Errorf("operations failed with %q, want %q", failures, texts)
	}
}

func (c *cluster) stop(t *testing.T) {
	t.Helper()
	c.kubelet.Send(t, protocol.KubeletCommand{Command: protocol.StopKubelet})
	c.await(t, protocol.KubeletEvent{Event: protocol.Stopped})
	wantExit(t, c.kubelet.Process, 0)
}

func wantExit(t *testing.T, process *harness.Process, want int) {
	t.Helper()
	code, err := process.AwaitExit(exitLimit)
	if err != nil {
		t.Fatal(err)
	}
	if code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
}

func wantRunning(t *testing.T, process *harness.Process) {
	t.Helper()
	select {
	case <-process.Exited():
		t.Error("the registrar has ended")
	default:
	}
}

func terminate(t *testing.T, registrar *harness.Process) {
	t.Helper()
	wantRunning(t, registrar)
	registrar.Terminate(t)
	wantExit(t, registrar, 0)
}

func wantText(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%q lacks %q", text, part)
	}
}
