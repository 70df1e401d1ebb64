package apiserver

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"interop/harness"
	"interop/harness/fakeplugin"
	"interop/kubelet/common/protocol"
)

// node is one of the cluster's, with our plugin manager in the place of its kubelet's.
type node struct {
	*harness.Node
	cluster    *cluster
	name       string
	user       string
	kubeconfig string
	// kubelet is whether the kubelet's own code is the manager.
	kubelet bool
	manager *harness.Talker[line]
}

// line is one of `kubelet-plugin-manager run --output json`.
type line struct {
	Event      string `json:"event"`
	Registered bool   `json:"registered"`
	Text       string `json:"text"`
	Operation  string `json:"operation"`
	Error      string `json:"error"`
}

// newNode makes the Node as a kubelet does when it starts, and a kubeconfig with the node's identity.
func (c *cluster) newNode(t *testing.T, name string) *node {
	t.Helper()
	n := &node{Node: harness.NewNode(t), cluster: c, name: name}
	n.create(t)
	n.identify(t, "system:node:"+name, "system:nodes")
	return n
}

// identify gives the manager the identity under which it asks.
func (n *node) identify(t *testing.T, user, group string) {
	t.Helper()
	n.user = user
	n.kubeconfig = n.cluster.ca.IssueClient(t, n.name+"."+user, n.cluster.address, user, group)
}

func (n *node) create(t *testing.T) *corev1.Node {
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{corev1.LabelHostname: n.name}}}
	created, err := n.cluster.admin.CoreV1().Nodes().Create(context.Background(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// startManager returns when the registration directory is watched, which is after the CSINode's initialisation.
func (n *node) startManager(t *testing.T) {
	t.Helper()
	n.launchManager(t, n.name)
	n.manager.Await(t, "watching", patience, func(l line) bool { return l.Event == "watching" })
}

func (n *node) launchManager(t *testing.T, name string) {
	t.Helper()
	if n.kubelet {
		n.manager = harness.StartTalker[line](t, n.Root, *kubeletBin,
			"-dir="+n.RegistrationDir, "-kubeconfig="+n.kubeconfig, "-node-name="+name)
		return
	}
	n.manager = harness.StartTalker[line](t, n.Root, *managerBin, "run", "-v=5", "--output=json",
		"--registration-dir="+n.RegistrationDir, "--kubeconfig="+n.kubeconfig, "--node-name="+name)
}

// stopManager ends it as a kubelet ends.
func (n *node) stopManager(t *testing.T) {
	t.Helper()
	n.manager.Terminate(t)
	if code, err := n.manager.AwaitExit(patience); err != nil || code != 0 {
		t.Fatalf("the manager ended with %d, %v", code, err)
	}
}

// awaitRegistered returns when a plugin was told that it is.
func (n *node) awaitRegistered(t *testing.T) {
	t.Helper()
	n.manager.Await(t, "a registered plugin", patience, func(l line) bool { return l.Event == "notified" && l.Registered })
}

// awaitRefused returns what a plugin was told.
func (n *node) awaitRefused(t *testing.T) string {
	t.Helper()
	return n.manager.Await(t, "a refused plugin", patience, func(l line) bool { return l.Event == "notified" && !l.Registered }).Text
}

func (n *node) awaitUnregistered(t *testing.T) {
	t.Helper()
	n.manager.Await(t, "an unregistered plugin", patience, func(l line) bool {
		return l.Event == "operation_succeeded" && l.Operation == "unregister"
	})
}

// plugin is a driver with its registrar.
type plugin struct {
	fakeplugin.Plugin
}

// startPlugin publishes a plugin under the driver's name.
func (n *node) startPlugin(t *testing.T, settings protocol.PluginSettings) plugin {
	t.Helper()
	p := plugin{fakeplugin.Start(t, n.Root, *fakePluginBin,
		filepath.Join(n.RegistrationDir, settings.Name+"-reg.sock"), filepath.Join(n.Root, "plugins", settings.Name+".sock"))}
	p.Configure(t, settings)
	p.Do(t, protocol.PluginCommand{Command: protocol.ServeCSI})
	p.Do(t, protocol.PluginCommand{Command: protocol.Publish})
	return p
}

func (n *node) object(t *testing.T) *corev1.Node {
	t.Helper()
	object, err := n.cluster.admin.CoreV1().Nodes().Get(context.Background(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func (n *node) csiNode(t *testing.T) *storagev1.CSINode {
	t.Helper()
	object, err := n.cluster.admin.StorageV1().CSINodes().Get(context.Background(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// requests are the manager's so far about Node and CSINode, one after the other, as "VERB RESOURCE CODE".
func (n *node) requests(t *testing.T) []string {
	t.Helper()
	objects, _ := n.conversations(t)
	return objects
}

// conversations also tells the requests about CSIDrivers, which are watched in a time of their own.
func (n *node) conversations(t *testing.T) (objects, drivers []string) {
	t.Helper()
	for _, r := range n.cluster.requests(t, n.user) {
		if r.ObjectRef.Resource == "csidrivers" {
			drivers = append(drivers, r.String())
		} else {
			objects = append(objects, r.String())
		}
	}
	return objects, drivers
}

// awaitWatch returns when CSIDrivers are watched.
func (n *node) awaitWatch(t *testing.T) {
	t.Helper()
	await(t, "a watch", func(context.Context) bool {
		_, drivers := n.conversations(t)
		return slices.Equal(drivers, []string{"list csidrivers 200", "watch csidrivers 200"})
	})
}

// setLabel sets a label of the Node, or removes it.
func (n *node) setLabel(t *testing.T, key string, value *string) {
	t.Helper()
	object := n.object(t)
	delete(object.Labels, key)
	if value != nil {
		object.Labels[key] = *value
	}
	if _, err := n.cluster.admin.CoreV1().Nodes().Update(context.Background(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("got  %s\nwant %s in it", text, part)
	}
}
