// What defines the kinds that the components of deploy use: the modules have the definitions as files, and nothing is built.
module etcd-wrapper/testdata/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
