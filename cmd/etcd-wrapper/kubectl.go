package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"etcd-wrapper/exitcode"
)

// pluginName is the program's name as a plugin of kubectl, which runs it for `kubectl etcd`. The plugin runs commands
// in a pod.
const pluginName = "kubectl-etcd"

func isPlugin(program string) bool {
	return strings.TrimSuffix(filepath.Base(program), ".exe") == pluginName
}

const pluginHelp = `Usage: kubectl etcd [flags] COMMAND [arguments]

Runs a command of etcd-wrapper in a pod of a release of the chart.

  status       show all members in one table; with --pod show one member
  members      list etcd's members
  backup ...   list, now, verify and more: kubectl etcd backup --help
  defrag       defragment the member's database now
  ...          any other command of etcd-wrapper: kubectl etcd etcdctl get / --prefix

Flags, before the command
  -n, --namespace=NAME   where the release is; default is the context's
  -r, --release=NAME     which one, where a namespace has several
      --context=NAME     which cluster, as kubectl knows it
      --pod=NAME         which pod; default is the first that is ready
`

// plugin is a call of `kubectl etcd`.
type plugin struct {
	namespace, release, context, pod string
	command                          []string
}

// runPlugin runs a command in a pod with kubectl, and returns its exit status.
func runPlugin(args []string, s streams) exitcode.Code {
	p, err := parsePlugin(args)
	switch {
	case errors.Is(err, errHelp):
		return s.print(pluginHelp)
	case err == nil:
		err = p.choose()
	}
	if err == nil {
		err = p.exec(s.out)
	}
	var ended *exec.ExitError
	switch log := s.logger(); {
	case errors.As(err, &ended):
		return exitcode.Code(ended.ExitCode())
	case err != nil:
		log.Error().Err(err).Msg("the command was not run in a pod")
		return exitcode.Usage
	}
	return exitcode.Clean
}

var errHelp = errors.New("help is wanted")

func parsePlugin(args []string) (*plugin, error) {
	p := &plugin{}
	flags := map[string]*string{
		"-n": &p.namespace, "--namespace": &p.namespace, "-r": &p.release, "--release": &p.release, "--context": &p.context, "--pod": &p.pod,
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, given := strings.Cut(args[0], "=")
		to := flags[name]
		switch {
		case name == "-h" || name == "--help":
			return nil, errHelp
		case to == nil:
			return nil, fmt.Errorf("%s: no such flag; see kubectl etcd --help", name)
		case given:
			*to, args = value, args[1:]
		case len(args) < 2:
			return nil, fmt.Errorf("%s: a value is missing", name)
		default:
			*to, args = args[1], args[2:]
		}
	}
	if len(args) == 0 {
		return nil, errHelp
	}
	p.command = args
	switch args[0] {
	case "members":
		p.command = append([]string{"etcdctl", "member", "list", "--write-out=table"}, args[1:]...)
	case "status":
		if p.pod == "" {
			p.command = append([]string{"status", "--cluster"}, args[1:]...)
		}
	}
	return p, nil
}

// podList has the fields of `kubectl get pods` that choose needs.
type podList struct {
	Items []struct {
		Metadata struct {
			Name   string
			Labels map[string]string
		}
		Status struct {
			Phase      string
			Conditions []struct{ Type, Status string }
		}
	}
}

const (
	releaseLabel = "app.kubernetes.io/part-of"
	memberLabel  = "app.kubernetes.io/component=etcd-statefulset"
)

// choose selects the pod unless --pod is set: the first ready one, or else the first running one.
func (p *plugin) choose() error {
	if p.pod != "" {
		return nil
	}
	selector := memberLabel
	if p.release != "" {
		selector += "," + releaseLabel + "=" + p.release
	}
	command := p.kubectl("get", "pods", "--selector="+selector, "--output=json")
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return fmt.Errorf("kubectl cannot list the pods: %w", withoutStatus(err))
	}
	var pods podList
	if err := json.Unmarshal(text, &pods); err != nil {
		return fmt.Errorf("cannot read kubectl's list of pods: %w", err)
	}
	var releases []string
	running := ""
	for _, pod := range pods.Items {
		if of := pod.Metadata.Labels[releaseLabel]; !slices.Contains(releases, of) {
			releases = append(releases, of)
		}
		for _, condition := range pod.Status.Conditions {
			if p.pod == "" && condition.Type == "Ready" && condition.Status == "True" {
				p.pod = pod.Metadata.Name
			}
		}
		if running == "" && pod.Status.Phase == "Running" {
			running = pod.Metadata.Name
		}
	}
	switch {
	case len(releases) > 1:
		return fmt.Errorf("the namespace has several releases, %s: name one with --release", strings.Join(releases, ", "))
	case p.pod == "" && running == "":
		return fmt.Errorf("no pod of an etcd runs here (%s): name its namespace with -n, or its release with -r", selector)
	case p.pod == "":
		p.pod = running
	}
	return nil
}

// withoutStatus hides kubectl's exit status, which would be mistaken for that of the command in the pod.
func withoutStatus(err error) error { return errors.New(err.Error()) }

func (p *plugin) exec(out io.Writer) error {
	command := p.kubectl(append([]string{"exec", p.pod, "--stdin", "--container=etcd", "--", "/etcd-wrapper"}, p.command...)...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, out, os.Stderr
	err := command.Run()
	if errors.Is(err, exec.ErrNotFound) {
		err = errors.New("kubectl is not on the path")
	}
	return err
}

func (p *plugin) kubectl(args ...string) *exec.Cmd {
	for flag, value := range map[string]string{"--namespace": p.namespace, "--context": p.context} {
		if value != "" {
			args = append([]string{flag + "=" + value}, args...)
		}
	}
	return exec.Command("kubectl", args...)
}
