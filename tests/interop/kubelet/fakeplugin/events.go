package main

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"interop/kubelet/common/protocol"
)

// timeFormat is RFC 3339 with microseconds, of one width.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

type events struct {
	lock sync.Mutex
	out  io.Writer
}

// write adds the time; a line is never interleaved with another.
func (e *events) write(event protocol.PluginEvent) {
	e.lock.Lock()
	defer e.lock.Unlock()
	event.At = time.Now().UTC().Format(timeFormat)
	line, err := json.Marshal(event)
	if err != nil {
		panic(err) // Strings and numbers have an encoding.
	}
	// A reader that is gone has closed our input too, which ends the process.
	_, _ = e.out.Write(append(line, '\n'))
}
