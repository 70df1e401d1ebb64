package protocol

// PluginEvent is one line of a fake plugin's standard output. Absent fields as in KubeletEvent.
type PluginEvent struct {
	// At is when the line was written: UTC, RFC 3339 with microseconds.
	At    string `json:"at"`
	Event string `json:"event"`

	// Method is a gRPC method's name without its service: GetInfo, NotifyRegistrationStatus, NodeGetInfo, ...
	Method string `json:"method,omitempty"`
	// Connection numbers the connections that this process accepted, from 1, over all its sockets.
	Connection int `json:"connection,omitempty"`
	// Authority is the request's :authority.
	Authority string `json:"authority,omitempty"`
	// Registered and Error are RegistrationStatus's; Registered is always there in a call of NotifyRegistrationStatus.
	Registered *bool  `json:"registered,omitempty"`
	Error      string `json:"error,omitempty"`
	// Code is the answer's gRPC code, as "OK"; of a call that its client gave up, the code that the client sees.
	Code string `json:"code,omitempty"`

	// Command is the command that was carried out, or not.
	Command string `json:"command,omitempty"`
	// Text tells why not.
	Text string `json:"text,omitempty"`
}

// Events of a fake plugin.
const (
	// Connected and Disconnected: Connection.
	Connected    = "connected"
	Disconnected = "disconnected"
	// Called: a call came in. Method, Connection, Authority, Registered, Error.
	Called = "called"
	// Answered: after the delay that was asked for. Method, Connection, Code.
	Answered = "answered"
	// Done and Failed follow each command. Command, Text.
	Done   = "done"
	Failed = "failed"
)

// PluginCommand is one line of a fake plugin's standard input.
type PluginCommand struct {
	Command string `json:"command"`
	// Settings belong to Configure.
	Settings *PluginSettings `json:"settings,omitempty"`
}

// Commands of a fake plugin. The process ends, with its sockets left as they are, when its input ends.
const (
	// Configure replaces all settings; what is not named is as in a fresh process.
	Configure = "configure"
	// Publish binds the registration socket and serves on it. A file in its place is an error.
	Publish = "publish"
	// PublishByRename binds it under a name that begins with a dot and renames it over what is in its place.
	PublishByRename = "publish_by_rename"
	// Unlink removes the registration socket's file and goes on serving those who are connected.
	Unlink = "unlink"
	// Close ends all connections to the registration socket and refuses new ones; the file stays.
	Close = "close"
	// ServeCSI binds and serves the driver's socket, in the place of a socket that is there.
	ServeCSI = "serve_csi"
	// CloseCSI ends all connections to the driver's socket and refuses new ones; the file stays.
	CloseCSI = "close_csi"
)

// PluginSettings are what the plugin answers.
type PluginSettings struct {
	// Type is CSIPlugin if empty.
	Type string `json:"type,omitempty"`
	// Name of the plugin and of the driver.
	Name string `json:"name,omitempty"`
	// Endpoint is the driver's socket if null.
	Endpoint *string `json:"endpoint,omitempty"`
	// Versions are ["1.0.0"] if null.
	Versions []string `json:"versions,omitempty"`

	NodeID     string            `json:"node_id,omitempty"`
	MaxVolumes int64             `json:"max_volumes,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`

	// DelaysMS are waited by every call of a method before its answer or its fault, in milliseconds; under Connect by every
	// connection to the registration socket before it is served, under ConnectDriver by those to the driver's.
	DelaysMS map[string]int `json:"delays_ms,omitempty"`
	// Faults by method; see PluginEvent.Method. Identity's methods may have faults too.
	Faults map[string]Fault `json:"faults,omitempty"`
}

// Connect and ConnectDriver are no methods: see DelaysMS.
const (
	Connect       = "Connect"
	ConnectDriver = "ConnectDriver"
)

// Fault is what goes wrong with calls of a method.
type Fault struct {
	// Times is the number of calls that it befalls; 0: all.
	Times int `json:"times,omitempty"`
	// DelayMS is waited before the answer, beyond DelaysMS, in milliseconds; a client that gives up ends it.
	DelayMS int `json:"delay_ms,omitempty"`
	// Code is the gRPC code of the answer; 0: the answer is right.
	Code uint32 `json:"code,omitempty"`
	// Message goes with the code.
	Message string `json:"message,omitempty"`
}
