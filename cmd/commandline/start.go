package commandline

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"
)

// DefaultTerminationPath is where Kubernetes looks unless a pod says otherwise.
const DefaultTerminationPath = "/dev/termination-log"

// StartEtcd are the flags of `start-etcd`. The first nine flags are those of gardener/etcd-wrapper, with the same names, types,
// defaults and meaning, so that the operator's pods need no change.
type StartEtcd struct {
	WrapperPort      Port          `name:"etcd-wrapper-port" group:"The wrapper's own server" default:"9095" help:"Port of the wrapper's own server."`
	SidecarTLS       bool          `name:"backup-restore-tls-enabled" group:"The sidecar" negatable:"" help:"Talk HTTPS to the sidecar."`
	SidecarHostPort  string        `name:"backup-restore-host-port" group:"The sidecar" default:":8080" help:"Where the sidecar listens, without scheme; an empty host means localhost."`
	SidecarCAPath    string        `name:"backup-restore-ca-cert-bundle-path" group:"The sidecar" placeholder:"PATH" help:"CA bundle for the sidecar's certificate; required with TLS."`
	EtcdServerName   string        `name:"etcd-server-name" group:"etcd" help:"Name in etcd's server certificate. Kept for the operator: readiness is seen from inside the process."`
	EtcdClientPort   Port          `name:"etcd-client-port" group:"etcd" default:"2379" help:"etcd's client port. Kept for the operator."`
	EtcdCertPath     string        `name:"etcd-client-cert-path" group:"etcd" placeholder:"PATH" help:"Client certificate for etcd. Its presence announces that etcd serves TLS."`
	EtcdKeyPath      string        `name:"etcd-client-key-path" group:"etcd" placeholder:"PATH" help:"Key of the client certificate."`
	EtcdReadyTimeout time.Duration `name:"etcd-ready-timeout" group:"etcd" default:"0s" help:"How long etcd may take to become ready; 0 waits for ever."`

	VolumeDir        string        `name:"volume-dir" group:"Files" default:"/var/etcd/data" help:"Directory of the volume: holds the exit record exit_code and, with --standalone, the data directory new.etcd."`
	StoredConfigPath string        `name:"stored-config-path" group:"Files" default:"${home}/etcd.conf.yaml" help:"Where the fetched configuration is kept for debugging."`
	WrapperCertPath  string        `name:"etcd-wrapper-cert-path" group:"The wrapper's own server" placeholder:"PATH" help:"Server certificate of the wrapper's own server; default is etcd's, once its configuration is known."`
	WrapperKeyPath   string        `name:"etcd-wrapper-key-path" group:"The wrapper's own server" placeholder:"PATH" help:"Key of that certificate."`
	StopFromAnywhere bool          `name:"stop-from-anywhere" group:"The wrapper's own server" help:"Accept POST /stop from clients that are not on this host."`
	Standalone       bool          `name:"standalone" group:"Without a sidecar" help:"Run without a sidecar: the data directory is validated in this program."`
	EtcdConfigFile   string        `name:"etcd-config-file" group:"Without a sidecar" placeholder:"PATH" help:"With --standalone: etcd's configuration; default is a single member on loopback."`
	EtcdDataVersion  string        `name:"etcd-data-version" group:"etcd" enum:",3.5,3.6" default:"" placeholder:"VERSION" help:"Oldest etcd that has to be able to read the data, 3.5 or 3.6; default is 3.5 with a sidecar and 3.6 with --standalone."`
	DefragThreshold  Threshold     `name:"defrag-threshold" group:"etcd" default:"free=45%,min=100Mi" placeholder:"WHEN" help:"The database is defragmented when this part of it and at least so many bytes are free; or never."`
	DefragMaxPause   time.Duration `name:"defrag-max-pause" group:"etcd" default:"15s" help:"A defragmentation that is expected to take longer is not begun."`

	Leases bool `name:"leases" group:"Without a sidecar" help:"In a pod, with --standalone: renew the Kubernetes leases of the member and of its backups, which the operator's tools read."`

	Backups  Backups  `embed:""`
	Recovery Recovery `embed:""`

	LogLevel        string `name:"log-level" group:"Log and last words" enum:"debug,info,warn,error" default:"info" help:"Least severe level that is logged: debug, info, warn or error."`
	LogFormat       string `name:"log-format" group:"Log and last words" enum:"json,console" default:"json" help:"json, a line for each event, or console, for people at a terminal: without etcd's own info lines, unless --log-level is debug."`
	TerminationPath string `name:"termination-message-path" group:"Log and last words" default:"${termination}" help:"Where Kubernetes reads why the container ended, if it exists."`
}

// Validate is called by kong. Each error names the flag.
func (f *StartEtcd) Validate() error {
	switch {
	case f.WrapperPort == 0:
		return errors.New("--etcd-wrapper-port: 0 is not a port")
	case f.EtcdReadyTimeout < 0:
		return fmt.Errorf("--etcd-ready-timeout: %s is negative", f.EtcdReadyTimeout)
	case (f.WrapperCertPath == "") != (f.WrapperKeyPath == ""):
		return errors.New("--etcd-wrapper-cert-path and --etcd-wrapper-key-path: one without the other")
	case (f.EtcdCertPath == "") != (f.EtcdKeyPath == ""):
		return errors.New("--etcd-client-cert-path and --etcd-client-key-path: one without the other")
	case f.EtcdConfigFile != "" && !f.Standalone:
		return errors.New("--etcd-config-file: only with --standalone; otherwise the sidecar serves the configuration")
	case f.Leases && !f.Standalone:
		return errors.New("--leases: only with --standalone; otherwise the sidecar renews them (its --enable-member-lease-renewal)")
	case f.DefragMaxPause < 0:
		return fmt.Errorf("--defrag-max-pause: %s is negative", f.DefragMaxPause)
	case f.StoredConfigPath == "" || f.VolumeDir == "":
		return errors.New("--stored-config-path and --volume-dir: must not be empty")
	}
	if err := f.Backups.validateFor(f.Standalone); err != nil {
		return err
	}
	if err := f.Recovery.validateFor(f.Backups.Store); err != nil {
		return err
	}
	return f.absolute()
}

// absolute makes the volume independent of the working directory, as etcd's data directory must be.
func (f *StartEtcd) absolute() error {
	dir, err := filepath.Abs(f.VolumeDir)
	if err != nil {
		return fmt.Errorf("--volume-dir: %w", err)
	}
	f.VolumeDir = dir
	return nil
}

// ExpectsTLS reports whether etcd can be expected to serve TLS before its configuration is known.
func (f *StartEtcd) ExpectsTLS() bool { return f.EtcdCertPath != "" || f.SidecarTLS }

// DataVersion is the oldest etcd that has to be able to read the data: the sidecar runs etcd 3.5 on them.
func (f *StartEtcd) DataVersion() string {
	switch {
	case f.EtcdDataVersion != "":
		return f.EtcdDataVersion
	case f.Standalone:
		return "3.6"
	default:
		return "3.5"
	}
}

// Level is the least severe level that is logged.
func (f *StartEtcd) Level() zerolog.Level {
	level, err := zerolog.ParseLevel(f.LogLevel)
	if err != nil {
		return zerolog.InfoLevel
	}
	return level
}

// Address is what the wrapper's own server binds, <host>:<port>.
func (f *StartEtcd) Address() string { return net.JoinHostPort("", strconv.Itoa(int(f.WrapperPort))) }

// RecordPath is where the exit record lies; the reference program uses the same name.
func (f *StartEtcd) RecordPath() string { return filepath.Join(f.VolumeDir, "exit_code") }

// CrashNotePath is where a crash leaves its reason.
func (f *StartEtcd) CrashNotePath() string { return f.RecordPath() + ".crash" }

// LastRunPath is where a run tells the next one how it ended.
func (f *StartEtcd) LastRunPath() string { return f.RecordPath() + ".last" }

// DataDir is etcd's data directory where there is no sidecar to name it.
func (f *StartEtcd) DataDir() string { return filepath.Join(f.VolumeDir, "new.etcd") }
