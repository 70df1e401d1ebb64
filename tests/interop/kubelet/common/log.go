package common

import (
	"bytes"
	"io"
	"io/ioutil"
	"regexp"
	"strconv"

	"interop/kubelet/common/protocol"
)

// LogVerbosity is the least at which the plugin manager tells the sockets that it sees (2) and the operations that it
// starts (1).
const LogVerbosity = 2

// header of a klog record: severity, and the message after the source position.
var header = regexp.MustCompile(`(?s)^([IWEF])\d{4} .*?\] (.*?)\n?$`)

// record is a message that becomes an event of its own. The plugin manager has no other door to what it sees and starts:
// its caches are private. A text that changes makes the tests fail, since they wait for these events.
type record struct {
	event     string
	operation string
	// message has the groups socket, and for a failure backoff and error; what begins with a quotation mark is quoted as in Go.
	message *regexp.Regexp
}

// records has each text twice where klog's structured messages replaced formatted ones, first the older (1.17).
var records = []record{
	{protocol.ManagerStarted, "", regexp.MustCompile(`^"?Starting Kubelet Plugin Manager"?$`)},
	{protocol.DesiredSet, "", regexp.MustCompile(`^Adding socket path or updating timestamp (?P<socket>.+) to desired state cache$`)},
	{protocol.DesiredSet, "", regexp.MustCompile(`^"Adding socket path or updating timestamp to desired state cache" path=(?P<socket>".+")$`)},
	{protocol.DesiredRemoved, "", regexp.MustCompile(`^Removing socket path (?P<socket>.+) from desired state cache$`)},
	{protocol.DesiredRemoved, "", regexp.MustCompile(`^"Removing socket path from desired state cache" path=(?P<socket>".+")$`)},
	{protocol.OperationStarted, protocol.Register, regexp.MustCompile(`^operationExecutor\.RegisterPlugin started for plugin at (?P<socket>".+?") `)},
	{protocol.OperationStarted, protocol.Register, regexp.MustCompile(`^"OperationExecutor\.RegisterPlugin started" plugin=\{"SocketPath":(?P<socket>".+?"),`)},
	{protocol.OperationStarted, protocol.Unregister, regexp.MustCompile(`^operationExecutor\.UnregisterPlugin started for plugin at (?P<socket>".+?") `)},
	{protocol.OperationStarted, protocol.Unregister, regexp.MustCompile(`^"OperationExecutor\.UnregisterPlugin started" plugin=\{"SocketPath":(?P<socket>".+?"),`)},
	{protocol.OperationFailed, "", regexp.MustCompile(`(?s)^Operation for (?P<socket>".+?") failed\. No retries permitted until .+? \(durationBeforeRetry (?P<backoff>\S+)\)\. Error: (?P<error>.*)$`)},
}

// Log is klog's output: it turns records into events and drops what is neither one of those nor a warning.
type Log struct{ Events *Events }

// Write takes one record, as klog hands them over.
func (l Log) Write(written []byte) (int, error) {
	parts := header.FindSubmatch(bytes.TrimRight(written, "\n"))
	if parts == nil {
		l.Events.Write(protocol.KubeletEvent{Event: protocol.Log, Severity: "E", Text: string(written)})
		return len(written), nil
	}
	severity, message := string(parts[1]), string(parts[2])
	for _, known := range records {
		if groups := known.message.FindStringSubmatch(message); groups != nil {
			l.Events.Write(known.read(groups))
			return len(written), nil
		}
	}
	if severity != "I" {
		l.Events.Write(protocol.KubeletEvent{Event: protocol.Log, Severity: severity, Text: message})
	}
	return len(written), nil
}

func (r record) read(groups []string) protocol.KubeletEvent {
	event := protocol.KubeletEvent{Event: r.event, Operation: r.operation}
	for i, name := range r.message.SubexpNames() {
		value := groups[i]
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		switch name {
		case "socket":
			event.Socket = value
		case "backoff":
			event.Backoff = value
		case "error":
			event.Error = value
		}
	}
	return event
}

// KlogFlags make klog write to what KlogOutputs names.
func KlogFlags() []string {
	return []string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL", "-v=" + strconv.Itoa(LogVerbosity)}
}

// KlogOutputs has a writer for each of klog's severities. A record goes to the outputs of its own and of all lower
// severities, so that the lowest sees every record, once.
func KlogOutputs(out io.Writer) map[string]io.Writer {
	return map[string]io.Writer{"INFO": out, "WARNING": ioutil.Discard, "ERROR": ioutil.Discard, "FATAL": ioutil.Discard}
}
