package apiserver

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"interop/kubelet/common/protocol"
)

const (
	driver   = "driver.example.com"
	idsKey   = "csi.volume.kubernetes.io/nodeid"
	migrated = "storage.alpha.kubernetes.io/migrated-plugins"
)

var settings = protocol.PluginSettings{
	Name:       driver,
	NodeID:     "id-1",
	MaxVolumes: 5,
	Topology:   map[string]string{corev1.LabelTopologyZone: "z1", "example.com/rack": "r1"},
}

// TestAPIServer starts one API server for all; each scenario has a node of its own. The last one stops the server.
func TestAPIServer(t *testing.T) {
	c := startCluster(t)
	t.Run("together", func(t *testing.T) {
		for name, scenario := range map[string]func(*testing.T, *cluster){
			"as the kubelet":        asTheKubelet,
			"install and uninstall": installAndUninstall,
			"second writer":         secondWriter,
			"ownership":             ownership,
			"collision":             collision,
			"limits":                limits,
			"changing limit":        changingLimit,
			"rights":                rights,
			"foreign node":          foreignNode,
			"granted rights":        grantedRights,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				scenario(t, c)
			})
		}
	})
	t.Run("outage", func(t *testing.T) { outage(t, c) })
}

// The whole life of a driver, request by request.
func installAndUninstall(t *testing.T, c *cluster) {
	n := c.newNode(t, "install")
	n.startManager(t)
	n.awaitWatch(t)
	wantRequests(t, n, 0, "get csinodes 404", "get nodes 200", "get csinodes 404", "create csinodes 201")
	created := n.csiNode(t)
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.name, UID: n.object(t).UID}}
	if !reflect.DeepEqual(created.OwnerReferences, owner) {
		t.Errorf("owners are %v, want %v", created.OwnerReferences, owner)
	}
	if plugins := strings.Split(created.Annotations[migrated], ","); len(plugins) != 7 || !slices.IsSorted(plugins) {
		t.Errorf("migrated plugins are %q", plugins)
	}
	// What is not ours stays, though a CSINode is written as a whole.
	created.Labels = map[string]string{"example.com/label": "kept"}
	created.Finalizers = []string{"example.com/kept"}
	created.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other.example.com", NodeID: "o", Allocatable: &storagev1.VolumeNodeResources{}}}
	created, err := c.admin.StorageV1().CSINodes().Update(t.Context(), created, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	before := len(n.requests(t))
	p := n.startPlugin(t, settings)
	n.awaitRegistered(t)
	wantRequests(t, n, before, "get nodes 200", "patch nodes/status 200", "get csinodes 200", "update csinodes 200")
	object := n.object(t)
	if got := object.Annotations[idsKey]; got != `{"driver.example.com":"id-1"}` {
		t.Errorf("node ids are %s", got)
	}
	for key, value := range settings.Topology {
		if object.Labels[key] != value {
			t.Errorf("label %s is %q, want %q", key, object.Labels[key], value)
		}
	}
	csiNode := n.csiNode(t)
	ours := storagev1.CSINodeDriver{
		Name: driver, NodeID: "id-1", TopologyKeys: []string{"example.com/rack", corev1.LabelTopologyZone}, Allocatable: count(5),
	}
	other := storagev1.CSINodeDriver{Name: "other.example.com", NodeID: "o"}
	wantDrivers(t, csiNode, other, ours)
	wantKept(t, csiNode, created)
	if managers := csiNode.ManagedFields; !slices.ContainsFunc(managers, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == "kubelet-plugin-manager"
	}) {
		t.Errorf("managed fields do not name the manager: %v", managers)
	}

	// A kubelet that restarts finds all as it should be, and sends an empty patch since there is topology.
	n.stopManager(t)
	before = len(n.requests(t))
	n.startManager(t)
	n.awaitRegistered(t)
	got := n.requests(t)[before:]
	want := []string{
		"get csinodes 200", "get nodes 200", "get csinodes 200",
		"get nodes 200", "patch nodes/status 200", "get csinodes 200",
	}
	if !slices.Equal(got, want) {
		t.Errorf("after a restart\ngot  %q\nwant %q", got, want)
	}
	if again := n.csiNode(t); again.ResourceVersion != csiNode.ResourceVersion {
		t.Errorf("a restart wrote the CSINode")
	}
	if again := n.object(t); again.ResourceVersion != object.ResourceVersion {
		t.Errorf("an empty patch changed the Node")
	}

	before = len(n.requests(t))
	p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	n.awaitUnregistered(t)
	wantRequests(t, n, before, "get csinodes 200", "update csinodes 200", "get nodes 200", "patch nodes/status 200")
	object = n.object(t)
	if _, found := object.Annotations[idsKey]; found {
		t.Errorf("the annotation is still there: %v", object.Annotations)
	}
	if object.Labels[corev1.LabelTopologyZone] != "z1" {
		t.Errorf("the label is gone: %v", object.Labels)
	}
	csiNode = n.csiNode(t)
	wantDrivers(t, csiNode, other)
	wantKept(t, csiNode, created)
}

// wantKept compares what the manager has nothing to do with.
func wantKept(t *testing.T, got, want *storagev1.CSINode) {
	t.Helper()
	if !reflect.DeepEqual(got.Labels, want.Labels) || !reflect.DeepEqual(got.Finalizers, want.Finalizers) || got.UID != want.UID ||
		!got.CreationTimestamp.Equal(&want.CreationTimestamp) || !reflect.DeepEqual(got.OwnerReferences, want.OwnerReferences) {
		t.Errorf("got  %+v\nwant %+v", got.ObjectMeta, want.ObjectMeta)
	}
}

// Somebody else writes the same objects all the time: nobody's change is lost.
func secondWriter(t *testing.T, c *cluster) {
	n := c.newNode(t, "second-writer")
	n.startManager(t)
	const key = "example.com/writes"
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		writes := 0
		for {
			select {
			case <-stop:
				done <- writes
				return
			default:
			}
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				object, err := c.admin.StorageV1().CSINodes().Get(context.Background(), n.name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				metav1.SetMetaDataAnnotation(&object.ObjectMeta, key, fmt.Sprint(writes+1))
				_, err = c.admin.StorageV1().CSINodes().Update(context.Background(), object, metav1.UpdateOptions{})
				return err
			})
			// All attempts may meet a conflict; what counts is what was written.
			if err == nil {
				writes++
			}
		}
	}()
	conflicts := func() (conflicts int) {
		for _, r := range n.requests(t) {
			if r == "update csinodes 409" {
				conflicts++
			}
		}
		return conflicts
	}
	registered := 0
	for limit := time.Now().Add(patience); conflicts() == 0; registered++ {
		if time.Now().After(limit) {
			t.Fatalf("no conflict within %s and %d registrations", patience, registered)
		}
		one := settings
		one.Name = fmt.Sprintf("d%d.example.com", registered)
		n.startPlugin(t, one)
		n.awaitRegistered(t)
	}
	close(stop)
	writes := <-done
	csiNode := n.csiNode(t)
	if got := csiNode.Annotations[key]; got != fmt.Sprint(writes) {
		t.Errorf("the second writer's value is %s after %d writes", got, writes)
	}
	if len(csiNode.Spec.Drivers) != registered {
		t.Errorf("%d drivers are there, want %d", len(csiNode.Spec.Drivers), registered)
	}
	t.Logf("%d conflicts in %d registrations beside %d writes", conflicts(), registered, writes)
}

// A node that was made anew finds the CSINode of its older incarnation, which no garbage collector has taken yet.
func ownership(t *testing.T, c *cluster) {
	n := c.newNode(t, "ownership")
	n.startManager(t)
	n.startPlugin(t, settings)
	n.awaitRegistered(t)
	n.stopManager(t)
	old := n.csiNode(t)
	if err := c.admin.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	owner := n.create(t)

	before := len(n.requests(t))
	n.startManager(t)
	n.awaitRegistered(t)
	got := n.requests(t)[before:]
	want := []string{
		"get csinodes 200",
		"get nodes 200", "get csinodes 200", "delete csinodes 200",
		"get nodes 200", "get csinodes 404", "create csinodes 201",
		"get nodes 200", "patch nodes/status 200", "get csinodes 200", "update csinodes 200",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	csiNode := n.csiNode(t)
	if csiNode.UID == old.UID || len(csiNode.OwnerReferences) != 1 || csiNode.OwnerReferences[0].UID != owner.UID {
		t.Errorf("CSINode %s of %v, the older one is %s, the node %s", csiNode.UID, csiNode.OwnerReferences, old.UID, owner.UID)
	}
}

// A label with another value than the driver's.
func collision(t *testing.T, c *cluster) {
	n := c.newNode(t, "collision")
	other := "z2"
	n.setLabel(t, corev1.LabelTopologyZone, &other)
	n.startManager(t)
	n.startPlugin(t, settings)
	wantText(t, n.awaitRefused(t), `caused by: detected topology value collision: driver reported `+
		`"topology.kubernetes.io/zone":"z1" but existing label is "topology.kubernetes.io/zone":"z2"`)
	object := n.object(t)
	if _, found := object.Labels["example.com/rack"]; found || object.Annotations[idsKey] != "" {
		t.Errorf("something was written: %v %v", object.Labels, object.Annotations)
	}
	wantDrivers(t, n.csiNode(t))
	n.setLabel(t, corev1.LabelTopologyZone, nil)
	n.awaitRegistered(t)
	if zone := n.object(t).Labels[corev1.LabelTopologyZone]; zone != "z1" {
		t.Errorf("the zone is %s", zone)
	}
}

// A driver's limit as a CSINode can hold it.
func limits(t *testing.T, c *cluster) {
	n := c.newNode(t, "limits")
	n.startManager(t)
	var want []storagev1.CSINodeDriver
	for _, limit := range []struct {
		name        string
		reported    int64
		allocatable *storagev1.VolumeNodeResources
	}{
		{"none", 0, nil}, {"one", 1, count(1)}, {"largest", 2147483647, count(2147483647)},
		{"larger", 2147483648, count(2147483647)}, {"negative", -1, nil},
	} {
		name := limit.name + ".example.com"
		n.startPlugin(t, protocol.PluginSettings{Name: name, NodeID: "id-1", MaxVolumes: limit.reported})
		n.awaitRegistered(t)
		want = append(want, storagev1.CSINodeDriver{Name: name, NodeID: "id-1", Allocatable: limit.allocatable})
	}
	wantDrivers(t, n.csiNode(t), want...)
}

// A limit that changes while the driver is registered: written once its CSIDriver says how often to ask.
func changingLimit(t *testing.T, c *cluster) {
	n := c.newNode(t, "changing-limit")
	n.startManager(t)
	one := settings
	one.Name = "changing.example.com"
	p := n.startPlugin(t, one)
	n.awaitRegistered(t)
	patched := n.object(t).ResourceVersion
	one.MaxVolumes = 9
	p.Configure(t, one)
	period := int64(10)
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: one.Name},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &period},
	}
	if _, err := c.admin.StorageV1().CSIDrivers().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	n.manager.Await(t, "a CSINode with the new limit", patience, func(l line) bool { return l.Event == "csi_node_written" })
	if took := time.Since(begin); took < 9*time.Second {
		t.Errorf("written after %s, before its period", took)
	}
	allocatable := n.csiNode(t).Spec.Drivers[0].Allocatable
	if !reflect.DeepEqual(allocatable, count(9)) {
		t.Errorf("allocatable is %v", allocatable)
	}
	if n.object(t).ResourceVersion != patched {
		t.Error("the Node was written too")
	}
}

// What a node may not write, it is told, and so is the plugin.
func rights(t *testing.T, c *cluster) {
	n := c.newNode(t, "rights")
	n.startManager(t)
	for key, reason := range map[string]string{
		"node-restriction.kubernetes.io/zone": "is not allowed to modify labels: node-restriction.kubernetes.io/zone",
		"foo.kubernetes.io/zone":              "is not allowed to modify labels: foo.kubernetes.io/zone",
	} {
		one := settings
		one.Name = strings.Split(key, ".")[0] + ".example.com"
		one.Topology = map[string]string{key: "z1"}
		p := n.startPlugin(t, one)
		text := n.awaitRefused(t)
		wantText(t, text, "error updating Node object with CSI driver node info: error updating node: timed out waiting for the condition; caused by: failed to patch status ")
		wantText(t, text, reason)
		p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	}
	wantDrivers(t, n.csiNode(t))
}

// A node's identity opens no other node's objects: the initialisation waits, as it does for an API server that is away.
func foreignNode(t *testing.T, c *cluster) {
	n := c.newNode(t, "foreign")
	c.newNode(t, "foreign-victim")
	n.launchManager(t, "foreign-victim")
	await(t, "a forbidden request", func(context.Context) bool { return len(n.requests(t)) > 1 })
	for _, request := range n.requests(t) {
		if request != "get csinodes 403" {
			t.Errorf("request %q", request)
		}
	}
	wantText(t, n.manager.Output(), "Failed to contact API server when waiting for CSINode publishing")
	n.manager.Terminate(t)
	if code, err := n.manager.AwaitExit(patience); err != nil || code != 1 {
		t.Errorf("the manager ended with %d, %v", code, err)
	}
}

// The rights that our documentation names are enough for somebody who is no node.
func grantedRights(t *testing.T, c *cluster) {
	page, err := os.ReadFile(*rulesPage)
	if err != nil {
		t.Fatal(err)
	}
	_, rules, found := strings.Cut(string(page), "```yaml\nrules:")
	rules, _, closed := strings.Cut(rules, "```")
	if !found || !closed {
		t.Fatalf("%s has no rules", *rulesPage)
	}
	n := c.newNode(t, "granted")
	n.identify(t, "somebody", "anybody")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "granted"}}
	if err := yaml.UnmarshalStrict([]byte("rules:"+strings.ReplaceAll(rules, "worker-1", n.name)), role); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: n.user}},
	}
	if _, err := c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The server's own copy of the roles may be a moment behind; the initialisation waits for it.
	n.startManager(t)
	n.awaitWatch(t)
	before := len(n.requests(t))
	p := n.startPlugin(t, settings)
	n.awaitRegistered(t)
	p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	n.awaitUnregistered(t)
	n.stopManager(t)
	if err := c.admin.CoreV1().Nodes().Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.create(t)
	n.startManager(t)
	objects, drivers := n.conversations(t)
	for _, request := range slices.Concat(objects[before:], drivers) {
		if strings.HasSuffix(request, " 403") {
			t.Errorf("request %q", request)
		}
	}
	if !slices.Contains(objects, "delete csinodes 200") {
		t.Error("the older incarnation's CSINode was not deleted")
	}
}

// The API server goes away and comes back.
func outage(t *testing.T, c *cluster) {
	n := c.newNode(t, "outage")
	n.startManager(t)
	p := n.startPlugin(t, settings)
	n.awaitRegistered(t)
	// Asked to stop, it would wait for the watches.
	c.server.Kill(t)
	second := settings
	second.Name = "second.example.com"
	n.startPlugin(t, second)
	wantText(t, n.awaitRefused(t), "onnection refused")
	// A driver that goes meanwhile is forgotten by nobody but the manager.
	p.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	n.awaitUnregistered(t)
	c.startServer(t)
	n.awaitRegistered(t)
	names := []string{}
	for _, one := range n.csiNode(t).Spec.Drivers {
		names = append(names, one.Name)
	}
	if !slices.Equal(names, []string{driver, second.Name}) {
		t.Errorf("drivers are %q", names)
	}
	// A watch that broke goes on, too.
	period := int64(10)
	object := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: second.Name},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &period},
	}
	if _, err := c.admin.StorageV1().CSIDrivers().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.manager.Await(t, "a driver that is asked again", patience, func(l line) bool { return l.Event == "node_info_received" })
}

func wantRequests(t *testing.T, n *node, from int, want ...string) {
	t.Helper()
	if got := n.requests(t)[from:]; !slices.Equal(got, want) {
		t.Errorf("requests\ngot  %q\nwant %q", got, want)
	}
}

// wantDrivers takes no keys for an empty list: sent as [], they come back as null.
func wantDrivers(t *testing.T, csiNode *storagev1.CSINode, want ...storagev1.CSINodeDriver) {
	t.Helper()
	got := slices.Clone(csiNode.Spec.Drivers)
	for i := range got {
		if len(got[i].TopologyKeys) == 0 {
			got[i].TopologyKeys = nil
		}
	}
	if !(len(got) == 0 && len(want) == 0) && !reflect.DeepEqual(got, want) {
		t.Errorf("drivers are %+v, want %+v", got, want)
	}
}

func count(volumes int32) *storagev1.VolumeNodeResources {
	return &storagev1.VolumeNodeResources{Count: &volumes}
}
