// What the programs that run the kubelet's code share, whichever Kubernetes release they stand on.
//
// It names no requirement on purpose: the Kubernetes packages that it imports come from the module that builds it, in that
// module's version, and one source is held against all of them.
module interop/kubelet/common

go 1.16
