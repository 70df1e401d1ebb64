// etcd, built from its Go module: where neither image nor release can be downloaded, a module still can.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
