// Package protocol is what the programs of this directory say and hear: one JSON object a line, the same whichever
// Kubernetes release the kubelet's code is of. README.md shows the lines; the types here are the format.
package protocol

import "encoding/json"

// KubeletEvent is one line of a kubelet's standard output. A field that an event does not name is absent; so is one whose
// value is empty, zero or null. Registered, which is always there in a notification, is the exception.
type KubeletEvent struct {
	// At is when the line was written: UTC, RFC 3339 with microseconds.
	At    string `json:"at"`
	Event string `json:"event"`

	// Version of Kubernetes, as "v1.37.2".
	Version string `json:"version,omitempty"`
	// Socket is the path of a registration socket.
	Socket string `json:"socket,omitempty"`
	// Operation is Register or Unregister.
	Operation string `json:"operation,omitempty"`
	// Call is Validate, Register or Deregister, of the CSI plugin handler.
	Call string `json:"call,omitempty"`
	// Error is the text of the error as the kubelet's code made it.
	Error string `json:"error,omitempty"`
	// Backoff is how long no operation for this socket is allowed, as Go prints durations.
	Backoff string `json:"backoff,omitempty"`

	// Type, Name, Endpoint and Versions are PluginInfo's, or the arguments of a handler's call.
	Type     string   `json:"type,omitempty"`
	Name     string   `json:"name,omitempty"`
	Endpoint string   `json:"endpoint,omitempty"`
	Versions []string `json:"versions,omitempty"`

	// NodeID, MaxVolumes and Topology are NodeGetInfoResponse's.
	NodeID     string            `json:"node_id,omitempty"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`

	// Registered and Error are RegistrationStatus's.
	Registered *bool `json:"registered,omitempty"`

	// Verb is create, update, patch or delete, as sent to the API server.
	Verb string `json:"verb,omitempty"`
	// Node and CSINode are the objects as Kubernetes' API spells them; an object that does not exist is absent.
	Node    json.RawMessage `json:"node,omitempty"`
	CSINode json.RawMessage `json:"csi_node,omitempty"`

	// Desired and Actual are the registration sockets of either state of world, sorted.
	Desired []string `json:"desired,omitempty"`
	Actual  []string `json:"actual,omitempty"`

	// Severity is W or E.
	Severity string `json:"severity,omitempty"`
	// Text is the message of a log record, or of a wrong command.
	Text string `json:"text,omitempty"`
}

// Events of a kubelet.
const (
	// Started: the process began, also after Restart. Version.
	Started = "started"
	// KubeletError: the volume plugins' reason why the node is not ready; without Error it is ready. Error.
	KubeletError = "kubelet_error"
	// ManagerStarted: the directory is watched and was traversed, the reconciler runs.
	ManagerStarted = "manager_started"
	// DesiredSet: a socket was seen; its entry in the desired state of world is new or has a new identity. Socket.
	DesiredSet = "desired_set"
	// DesiredRemoved: a file was deleted, socket or not, and is no longer desired if it was. Socket.
	DesiredRemoved = "desired_removed"
	// OperationStarted follows the start of an operation, so that its first effects may be told before it. Socket, Operation.
	OperationStarted = "operation_started"
	// OperationFailed: success is silent. Socket, Backoff, Error.
	OperationFailed = "operation_failed"
	// PluginInfo: the answer to GetInfo was read. Type, Name, Endpoint, Versions.
	PluginInfo = "plugin_info"
	// HandlerCalled: Call, Name, Endpoint, Versions, as far as this release hands them over.
	HandlerCalled = "handler_called"
	// HandlerReturned: Call, Name, Error.
	HandlerReturned = "handler_returned"
	// NodeInfo: the answer to NodeGetInfo was read. NodeID, MaxVolumes, Topology.
	NodeInfo = "node_info"
	// Notification: NotifyRegistrationStatus is being sent over a live connection; that it did not arrive shows in an
	// OperationFailed. Registered, Error.
	Notification = "notification"
	// NotificationAnswered: the plugin answered it without an error.
	NotificationAnswered = "notification_answered"
	// NodeWritten and CSINodeWritten: the API server took or refused a write. Verb, Error, and the object as it is then.
	NodeWritten    = "node_written"
	CSINodeWritten = "csi_node_written"
	// Snapshot answers the command. Desired, Actual, Node, CSINode.
	Snapshot = "snapshot"
	// Log: a warning or an error that none of the above tells. Severity, Text.
	Log = "log"
	// Stopped: the plugin manager has returned; the process ends with 0.
	Stopped = "stopped"
	// CommandFailed: Text.
	CommandFailed = "command_failed"
)

// Values of Operation and Call.
const (
	Register   = "register"
	Unregister = "unregister"
	Validate   = "validate"
	Deregister = "deregister"
)

// Verbs of the API.
const (
	Create = "create"
	Update = "update"
	Patch  = "patch"
	Delete = "delete"
)

// KubeletCommand is one line of a kubelet's standard input.
type KubeletCommand struct {
	Command string `json:"command"`
}

// Commands of a kubelet. The end of the input is StopKubelet.
const (
	// StopKubelet closes the stop channel, and cancels the context where the release has one.
	StopKubelet = "stop"
	// RestartKubelet begins anew in a fresh process image, as after a kill: all memory is lost, the API server's objects stay.
	RestartKubelet = "restart"
	// TakeSnapshot asks for a Snapshot.
	TakeSnapshot = "snapshot"
)
