package commandline

import (
	"flag"
	"io"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// goFlags are the operator's flags as Go's flag package reads them: the program that its pods were made for uses it.
type goFlags struct {
	wrapperPort, clientPort           int
	tls                               bool
	hostPort, ca, name, cert, certKey string
	readyTimeout                      time.Duration
}

func readAsGo(args []string) (flags goFlags, rest int, err error) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.IntVar(&flags.wrapperPort, "etcd-wrapper-port", 9095, "")
	set.IntVar(&flags.clientPort, "etcd-client-port", 2379, "")
	set.BoolVar(&flags.tls, "backup-restore-tls-enabled", false, "")
	set.StringVar(&flags.hostPort, "backup-restore-host-port", ":8080", "")
	set.StringVar(&flags.ca, "backup-restore-ca-cert-bundle-path", "", "")
	set.StringVar(&flags.name, "etcd-server-name", "", "")
	set.StringVar(&flags.cert, "etcd-client-cert-path", "", "")
	set.StringVar(&flags.certKey, "etcd-client-key-path", "", "")
	set.DurationVar(&flags.readyTimeout, "etcd-ready-timeout", 0, "")
	err = set.Parse(args)
	return flags, set.NArg(), err
}

// usable reports whether the values mean something; Go's flag package takes any.
func (g goFlags) usable() bool {
	port := func(n int) bool { return n >= 0 && n <= math.MaxUint16 }
	return port(g.wrapperPort) && g.wrapperPort != 0 && port(g.clientPort) && g.readyTimeout >= 0 && (g.cert == "") == (g.certKey == "")
}

// FuzzCommandLine fails on a panic, on an error that is not one sentence, and if what Go's flag package takes is not
// taken here, with the same meaning.
func FuzzCommandLine(f *testing.F) {
	for _, line := range []string{
		"", "--etcd-client-port=0x50", "-etcd-wrapper-port\n1_000", "--backup-restore-tls-enabled", "-backup-restore-tls-enabled=F",
		"--backup-restore-tls-enabled=T\n--backup-restore-ca-cert-bundle-path\n/ca", "--etcd-ready-timeout=1m30s", "--etcd-ready-timeout=0",
		"--etcd-client-cert-path=a\n--etcd-client-key-path=b", "--etcd-client-cert-path=a", "--backup-restore-host-port=\n--etcd-server-name\n--x",
		"--etcd-wrapper-port=0", "--nope", "--", "-h", "--volume-dir=", "--etcd-server-name=${HOME}", "--etcd-wrapper-port=+9095", "---x", "-=",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if !utf8.ValidString(line) {
			t.Skip("kong reads UTF-8")
		}
		args := strings.Split(line, "\n")
		if line == "" {
			args = nil
		}
		var commands commands
		_, err := Parse(&commands, append([]string{"start-etcd"}, args...), io.Discard)
		reference, rest, refused := readAsGo(args)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.False(t, refused == nil && rest == 0 && reference.usable(), "Go takes it: %v", err)
			return
		}
		if refused != nil || rest > 0 {
			return // flags of our own
		}
		require.Equal(t, reference, commands.Start.asGo())
	})
}

func (f *StartEtcd) asGo() goFlags {
	return goFlags{
		wrapperPort: int(f.WrapperPort), clientPort: int(f.EtcdClientPort), tls: f.SidecarTLS, hostPort: f.SidecarHostPort,
		ca: f.SidecarCAPath, name: f.EtcdServerName, cert: f.EtcdCertPath, certKey: f.EtcdKeyPath, readyTimeout: f.EtcdReadyTimeout,
	}
}
