// Command fakeplugin is a plugin that is told how to behave: a registration socket, a CSI driver's socket, and on both of
// them the faults that it is asked for. It tells every call that it gets. The lines are described in package protocol.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"interop/kubelet/common/protocol"
)

func main() {
	registration := flag.String("registration-socket", "", "path of the registration socket; nothing is bound before a command")
	driver := flag.String("csi-socket", "", "path of the CSI driver's socket; likewise")
	flag.Parse()

	events := &events{out: os.Stdout}
	plugin := newPlugin(*registration, *driver, events)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var command protocol.PluginCommand
		err := json.Unmarshal(input.Bytes(), &command)
		if err == nil {
			err = plugin.obey(command)
		}
		if err != nil {
			events.write(protocol.PluginEvent{Event: protocol.Failed, Command: command.Command, Text: err.Error()})
			continue
		}
		events.write(protocol.PluginEvent{Event: protocol.Done, Command: command.Command})
	}
	if err := input.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot read commands:", err)
		os.Exit(1)
	}
}
