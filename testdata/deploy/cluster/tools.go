package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// Build makes the programs of Kubernetes, which have a module of their own so that nothing else changes what they are built
// from, runc and the project's image. The first time takes a quarter of an hour on two
// cores; what Go has cached, seconds.
func Build() error {
	stamp := "-s -w"
	for key, value := range map[string]string{"gitVersion": release, "gitMajor": "1", "gitMinor": "36", "gitTreeState": "clean"} {
		stamp += " -X k8s.io/component-base/version." + key + "=" + value
	}
	control := []string{"build", "-p", "2", "-ldflags", stamp, "-o", tools() + "/"}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"} {
		control = append(control, "k8s.io/kubernetes/cmd/"+name)
	}
	if err := run(filepath.Join(Checkout(), "testdata/kubernetes"), []string{"CGO_ENABLED=0"}, "go", control...); err != nil {
		return err
	}
	// runc enters namespaces before Go begins, which takes a C compiler.
	module := filepath.Join(Checkout(), "testdata/deploy")
	if err := run(module, []string{"CGO_ENABLED=1"}, "go", "build", "-p", "2", "-o", tools()+"/", "github.com/opencontainers/runc"); err != nil {
		return err
	}
	if err := run(module, []string{"CGO_ENABLED=0"}, "go", "build", "-o", tools()+"/", "./sidecar"); err != nil {
		return err
	}
	if err := run(filepath.Join(Checkout(), "testdata/crds"), nil, "go", "mod", "download"); err != nil {
		return err
	}
	return run(Checkout(), nil, "make", "image", "VERSION=v0.0.0-test")
}

func run(dir string, env []string, name string, args ...string) error {
	command := exec.Command(name, args...)
	command.Dir, command.Env = dir, append(os.Environ(), env...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, args[0], err, out)
	}
	return nil
}

// Tool is the path of a program that Build made.
func Tool(name string) string { return filepath.Join(tools(), name) }

// Wrapper is the program under test, as it is in the image.
func Wrapper() string {
	return filepath.Join(Checkout(), "bin", "linux-"+runtime.GOARCH, "etcd-wrapper")
}
