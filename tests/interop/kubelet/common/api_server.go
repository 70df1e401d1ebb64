package common

import (
	"encoding/json"
	"fmt"
	"io/ioutil"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"interop/kubelet/common/protocol"
)

// NodeName is the one node's; it exists from the start, with its hostname as the only label.
const NodeName = "node1"

// nodeUID is what a CSINode's owner reference must name.
const nodeUID = "5e0bd9ae-0b37-4e6b-9a3c-6b1f3f1e7a10"

var (
	nodes    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	csiNodes = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"}
)

// APIServer is client-go's fake clientset, whose Node and CSINode outlive the process in a file, and which tells every write.
type APIServer struct {
	Client *fake.Clientset

	events *Events
	path   string
	lock   sync.Mutex
}

// objects is the file's content.
type objects struct {
	Node    json.RawMessage `json:"node,omitempty"`
	CSINode json.RawMessage `json:"csi_node,omitempty"`
}

// OpenAPIServer reads the objects; without a file there is a new node and no CSINode.
func OpenAPIServer(path string, events *Events) (*APIServer, error) {
	known, err := readObjects(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the API server's objects from %s: %w", path, err)
	}
	server := &APIServer{Client: fake.NewSimpleClientset(known...), events: events, path: path}
	store := clienttesting.ObjectReaction(server.Client.Tracker())
	server.Client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		server.lock.Lock()
		defer server.lock.Unlock()
		handled, object, err := store(action)
		server.tell(action, err)
		return handled, object, err
	})
	return server, nil
}

func readObjects(path string) ([]runtime.Object, error) {
	content, err := ioutil.ReadFile(path)
	if os.IsNotExist(err) {
		return []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   NodeName,
			UID:    nodeUID,
			Labels: map[string]string{corev1.LabelHostname: NodeName},
		}}}, nil
	}
	if err != nil {
		return nil, err
	}
	var stored objects
	if err := json.Unmarshal(content, &stored); err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	if err := json.Unmarshal(stored.Node, node); err != nil {
		return nil, err
	}
	known := []runtime.Object{node}
	if stored.CSINode != nil {
		csiNode := &storagev1.CSINode{}
		if err := json.Unmarshal(stored.CSINode, csiNode); err != nil {
			return nil, err
		}
		known = append(known, csiNode)
	}
	return known, nil
}

// tell writes the event and the file after a write.
func (s *APIServer) tell(action clienttesting.Action, result error) {
	switch action.GetVerb() {
	case protocol.Create, protocol.Update, protocol.Patch, protocol.Delete:
	default:
		return
	}
	current := s.objects()
	event := protocol.KubeletEvent{Verb: action.GetVerb(), Error: text(result)}
	switch action.GetResource() {
	case nodes:
		event.Event, event.Node = protocol.NodeWritten, current.Node
	case csiNodes:
		event.Event, event.CSINode = protocol.CSINodeWritten, current.CSINode
	default:
		return
	}
	if err := s.save(current); err != nil {
		panic(fmt.Sprintf("the API server's objects are lost: %v", err))
	}
	s.events.Write(event)
}

func (s *APIServer) objects() objects {
	return objects{Node: s.get(nodes), CSINode: s.get(csiNodes)}
}

func (s *APIServer) get(resource schema.GroupVersionResource) json.RawMessage {
	object, err := s.Client.Tracker().Get(resource, "", NodeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		panic(err) // The tracker holds these two kinds only.
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		panic(err) // API types have encoders.
	}
	return encoded
}

// save never leaves half a file behind.
func (s *APIServer) save(current objects) error {
	content, err := json.Marshal(current)
	if err != nil {
		return err
	}
	next := s.path + ".next"
	if err := ioutil.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.path)
}
