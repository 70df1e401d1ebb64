// Command mockdriver serves the CSI mock driver of Kubernetes' end-to-end suite on a Unix socket, so that the registrar
// registers a driver that was not written with it in mind.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os/signal"
	"syscall"

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	address := flag.String("csi-address", "", "path of the socket to listen on")
	name := flag.String("driver-name", service.Name, "name that GetPluginInfo tells, and the node id")
	attachLimit := flag.Int64("attach-limit", 0, "max_volumes_per_node that NodeGetInfo tells; 0: none")
	topology := flag.Bool("topology", false, "tell a topology segment in NodeGetInfo")
	flag.Parse()

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	listener, err := net.Listen("unix", *address)
	if err != nil {
		log.Fatalf("cannot listen for CSI calls: %v", err)
	}
	mock := service.New(service.Config{DriverName: *name, AttachLimit: *attachLimit, EnableTopology: *topology})
	csi := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := csi.Start(listener, nil); err != nil {
		log.Fatalf("cannot serve CSI on %s: %v", *address, err)
	}
	<-stop.Done()
	csi.Stop()
}
