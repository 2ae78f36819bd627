package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Checkout is the root of the project, seen from a package of this module that is two folders below the module's.
func Checkout() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}

// tools are where what Build makes of the module's tool lines lies.
func tools() string { return filepath.Join(Checkout(), "bin", "test-deploy") }

// release is the version of Kubernetes whose programs are built; their go.mod has it, too.
const release = "v1.36.3"

// stamp is what the programs of Kubernetes say of themselves. Its order is fixed, or they would be linked anew each time.
const stamp = "-s -w -X k8s.io/component-base/version.gitVersion=" + release +
	" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" +
	" -X k8s.io/component-base/version.gitTreeState=clean"

// Build makes the programs of Kubernetes, which have a module of their own so that nothing else changes what they are built
// from, runc, a server of S3's protocol, the scripted sidecar, the project's image and what is published of it. The first time takes a quarter of an
// hour on two cores; what Go has cached, seconds. With TEST_DEPLOY_BUILT nothing is built: bin/test-deploy and bin/image then hold
// what an earlier run has left there, or programs of Kubernetes from elsewhere.
func Build() error {
	if os.Getenv("TEST_DEPLOY_BUILT") != "" {
		return nil
	}
	const kubernetes = "k8s.io/kubernetes/cmd/"
	return errors.Join(
		BuildHelm(),
		build("testdata/kubernetes", "0", "-ldflags", stamp,
			kubernetes+"kube-apiserver", kubernetes+"kube-controller-manager", kubernetes+"kube-scheduler", kubernetes+"kubectl"),
		build("testdata/deploy", "1", "github.com/opencontainers/runc"), // it enters namespaces before Go begins, which takes C
		build("testdata/deploy", "0", "./sidecar"),
		build("testdata/servers", "0", "github.com/versity/versitygw/cmd/versitygw"),
		run("testdata/crds", nil, "go", "mod", "download"),
		run(".", nil, "make", "image", "VERSION="+Version),
		run("deploy/release", nil, "go", "run", ".", "-out", Published(), "-version", Version, Wrapper()),
	)
}

// BuildHelm makes helm, which has a module of its own for the same reason.
func BuildHelm() error {
	return build("testdata/helm", "0", "-ldflags", "-s -w", "helm.sh/helm/v4/cmd/helm")
}

// Version is what the image is stamped with.
const Version = "v0.0.0-test"

// build makes programs of a module of the project.
func build(module, cgo string, args ...string) error {
	return run(module, []string{"CGO_ENABLED=" + cgo}, "go", append([]string{"build", "-p", "2", "-o", tools() + "/"}, args...)...)
}

func run(folder string, env []string, name string, args ...string) error {
	command := exec.Command(name, args...)
	command.Dir, command.Env = filepath.Join(Checkout(), folder), append(os.Environ(), env...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in %s: %w\n%s", strings.Join(append([]string{name}, args...), " "), folder, err, out)
	}
	return nil
}

// Released are the charts of all earlier versions, as they were published.
func Released() []string {
	charts, err := filepath.Glob(filepath.Join(Checkout(), "testdata/deploy/released/*.tgz"))
	if err != nil || len(charts) == 0 {
		panic(fmt.Sprintf("there are no charts in testdata/deploy/released: %v", err))
	}
	return charts
}

// Published is the folder of a release, for this machine's platform: the one that Build made, or any that was put there.
func Published() string { return filepath.Join(tools(), "dist") }

// Tool is the path of a program that Build made.
func Tool(name string) string { return filepath.Join(tools(), name) }

// Wrapper is the program under test, as it is in the image.
func Wrapper() string {
	return filepath.Join(Checkout(), "bin", "linux-"+runtime.GOARCH, "etcd-wrapper")
}
