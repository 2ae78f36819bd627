module etcd-wrapper/deploy/release

go 1.26.0

require (
	etcd-wrapper/deploy/image v0.0.0
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/hiddeco/sshsig v0.2.0
	github.com/in-toto/attestation v1.2.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/crypto v0.58.0
	google.golang.org/protobuf v1.36.12
	sigs.k8s.io/yaml v1.6.0
)

require (
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace etcd-wrapper/deploy/image => ../image
