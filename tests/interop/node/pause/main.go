// Command pause is what a pod's sandbox runs: nothing, until it is told to stop. Kubernetes' own comes from a registry only.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
