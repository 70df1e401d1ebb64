// Runs the kubelet's plugin manager and CSI handler of Kubernetes 1.17, the release of the project's documents: raw
// :authority, and a removed socket does not unregister.
module kubelet1.17

// Before 1.17 a module file need not list its indirect requirements, which are hundreds here.
go 1.16

replace interop/kubelet/common => ../common

// Its own tree names this one by a host that is gone.
replace vbom.ml/util => github.com/fvbommel/util v0.0.3

// As in ../../go.mod: the staging modules' release, in one place. The others are what this release was built with, as far as
// this program is made of it, except for golang.org/x/{crypto,net,sync,sys,text,tools}, whose versions of then no longer build.
replace (
	github.com/beorn7/perks => github.com/beorn7/perks v1.0.0
	github.com/blang/semver => github.com/blang/semver v3.5.0+incompatible
	github.com/container-storage-interface/spec => github.com/container-storage-interface/spec v1.2.0
	github.com/davecgh/go-spew => github.com/davecgh/go-spew v1.1.1
	github.com/docker/distribution => github.com/docker/distribution v2.7.1+incompatible
	github.com/docker/spdystream => github.com/docker/spdystream v0.0.0-20160310174837-449fdfce4d96
	github.com/evanphx/json-patch => github.com/evanphx/json-patch v4.9.0+incompatible // 162e5629780b is the SHA for git tag v4.8.0
	github.com/fsnotify/fsnotify => github.com/fsnotify/fsnotify v1.4.7
	github.com/gogo/protobuf => github.com/gogo/protobuf v1.2.2-0.20190723190241-65acae22fc9d
	github.com/golang/groupcache => github.com/golang/groupcache v0.0.0-20160516000752-02826c3e7903
	github.com/golang/protobuf => github.com/golang/protobuf v1.3.2
	github.com/google/go-cmp => github.com/google/go-cmp v0.3.0
	github.com/google/gofuzz => github.com/google/gofuzz v1.0.0
	github.com/google/uuid => github.com/google/uuid v1.1.1
	github.com/googleapis/gnostic => github.com/googleapis/gnostic v0.0.0-20170729233727-0c5108395e2d
	github.com/hashicorp/golang-lru => github.com/hashicorp/golang-lru v0.5.1
	github.com/json-iterator/go => github.com/json-iterator/go v1.1.8
	github.com/matttproud/golang_protobuf_extensions => github.com/matttproud/golang_protobuf_extensions v1.0.1
	github.com/modern-go/concurrent => github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 => github.com/modern-go/reflect2 v1.0.1
	github.com/opencontainers/go-digest => github.com/opencontainers/go-digest v1.0.0-rc1
	github.com/pkg/errors => github.com/pkg/errors v0.8.1
	github.com/prometheus/client_golang => github.com/prometheus/client_golang v1.0.0
	github.com/prometheus/client_model => github.com/prometheus/client_model v0.0.0-20190129233127-fd36f4220a90
	github.com/prometheus/common => github.com/prometheus/common v0.4.1
	github.com/prometheus/procfs => github.com/prometheus/procfs v0.0.2
	github.com/spf13/afero => github.com/spf13/afero v1.2.2
	github.com/spf13/pflag => github.com/spf13/pflag v1.0.5
	golang.org/x/oauth2 => golang.org/x/oauth2 v0.0.0-20190604053449-0f29369cfe45
	golang.org/x/time => golang.org/x/time v0.0.0-20190308202827-9d24e82272b4
	google.golang.org/genproto => google.golang.org/genproto v0.0.0-20190502173448-54afdca5d873
	google.golang.org/grpc => google.golang.org/grpc v1.23.1
	gopkg.in/inf.v0 => gopkg.in/inf.v0 v0.9.1
	gopkg.in/yaml.v2 => gopkg.in/yaml.v2 v2.2.8
	k8s.io/api => k8s.io/api v0.17.17
	k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.17.17
	k8s.io/apimachinery => k8s.io/apimachinery v0.17.17
	k8s.io/apiserver => k8s.io/apiserver v0.17.17
	k8s.io/cli-runtime => k8s.io/cli-runtime v0.17.17
	k8s.io/client-go => k8s.io/client-go v0.17.17
	k8s.io/cloud-provider => k8s.io/cloud-provider v0.17.17
	k8s.io/cluster-bootstrap => k8s.io/cluster-bootstrap v0.17.17
	k8s.io/code-generator => k8s.io/code-generator v0.17.17
	k8s.io/component-base => k8s.io/component-base v0.17.17
	k8s.io/cri-api => k8s.io/cri-api v0.17.17
	k8s.io/csi-translation-lib => k8s.io/csi-translation-lib v0.17.17
	k8s.io/gengo => k8s.io/gengo v0.0.0-20190822140433-26a664648505
	k8s.io/heapster => k8s.io/heapster v1.2.0-beta.1
	k8s.io/klog => k8s.io/klog v1.0.0
	k8s.io/kube-aggregator => k8s.io/kube-aggregator v0.17.17
	k8s.io/kube-controller-manager => k8s.io/kube-controller-manager v0.17.17
	k8s.io/kube-openapi => k8s.io/kube-openapi v0.0.0-20200410145947-bcb3869e6f29
	k8s.io/kube-proxy => k8s.io/kube-proxy v0.17.17
	k8s.io/kube-scheduler => k8s.io/kube-scheduler v0.17.17
	k8s.io/kubectl => k8s.io/kubectl v0.17.17
	k8s.io/kubelet => k8s.io/kubelet v0.17.17
	k8s.io/legacy-cloud-providers => k8s.io/legacy-cloud-providers v0.17.17
	k8s.io/metrics => k8s.io/metrics v0.17.17
	k8s.io/repo-infra => k8s.io/repo-infra v0.0.1-alpha.1
	k8s.io/sample-apiserver => k8s.io/sample-apiserver v0.17.17
	k8s.io/sample-cli-plugin => k8s.io/sample-cli-plugin v0.17.17
	k8s.io/sample-controller => k8s.io/sample-controller v0.17.17
	k8s.io/system-validators => k8s.io/system-validators v1.0.4
	k8s.io/utils => k8s.io/utils v0.0.0-20191114184206-e782cd3c129f
	sigs.k8s.io/yaml => sigs.k8s.io/yaml v1.1.0
)

require (
	google.golang.org/grpc v1.23.1
	interop/kubelet/common v0.0.0
	k8s.io/client-go v0.17.17
	k8s.io/klog v1.0.0
	k8s.io/kubelet v0.0.0
	k8s.io/kubernetes v1.17.17
)
