package etcdconf_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3discovery"
)

// oracleEnv makes the test binary read configurations the way plain etcd does. It must be a process of its own, since
// etcd's reader exits and panics.
const oracleEnv = "ETCDCONF_TEST_ORACLE"

func TestMain(m *testing.M) {
	if path := os.Getenv(oracleEnv); path != "" {
		answerAsEtcd(path)
		return
	}
	os.Exit(m.Run())
}

// verdict is what plain etcd makes of a configuration.
type verdict struct {
	Refusal string            // empty if it accepts
	Values  map[string]string // what it then runs with
}

// answerAsEtcd answers each configuration on stdin, a JSON text, with a verdict.
func answerAsEtcd(path string) {
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var document string
		if questions.Decode(&document) != nil {
			return
		}
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			panic(err)
		}
		if err := answers.Encode(asPlainEtcd(path)); err != nil {
			panic(err)
		}
	}
}

func asPlainEtcd(path string) verdict {
	cfg, err := embed.ConfigFromFile(path)
	if err != nil {
		return verdict{Refusal: err.Error()}
	}
	// What etcd's own command does after that (etcdmain).
	_, _ = cfg.UpdateDefaultClusterFromName(embed.NewConfig().InitialCluster)
	if cfg.V2Deprecation != config.V2Depr1WriteOnlySkipCheck {
		cfg.V2Deprecation = config.V2DeprDefault
	}
	if cfg.WarningUnaryRequestDuration == 0 {
		cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	}
	return verdict{Values: valuesOf(cfg)}
}

// valuesOf writes down every value of a configuration that can be compared.
func valuesOf(cfg *embed.Config) map[string]string {
	values := map[string]string{}
	is := reflect.ValueOf(cfg).Elem()
	for field, value := range is.Fields() {
		if !field.IsExported() || field.Type.Kind() == reflect.Func {
			continue
		}
		values[field.Name] = written(value.Interface())
	}
	for _, name := range []string{ // decided by the wrapper, or there for etcd's checks only
		"Logger", "LogOutputs", "LogFormat", "EnableLogRotation", "LogRotationConfigJSON", "LogLevel", "FlagsExplicitlySet",
	} {
		delete(values, name)
	}
	return values
}

func written(value any) string {
	switch is := value.(type) {
	case []url.URL:
		text := []string{}
		for _, u := range is {
			text = append(text, u.String())
		}
		return fmt.Sprint(text)
	case transport.TLSInfo:
		return fmt.Sprint(is.String(), is.AllowedCNs, is.AllowedHostnames, is.SkipClientSANVerify, is.ClientCertFile, is.ClientKeyFile)
	case v3discovery.DiscoveryConfig: // it has pointers
		text, _ := json.Marshal(is)
		return string(text)
	case featuregate.FeatureGate:
		all := map[featuregate.Feature]bool{}
		for feature := range is.(featuregate.MutableFeatureGate).GetAll() {
			all[feature] = is.Enabled(feature)
		}
		return fmt.Sprint(all)
	default:
		return fmt.Sprintf("%+v", value)
	}
}

// oracle is a process that answers for plain etcd. It is started again when a configuration has ended it.
type oracle struct {
	path    string // of the file that it reads
	process *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

func newOracle(t testing.TB) *oracle {
	o := &oracle{path: filepath.Join(t.TempDir(), "etcd.conf.yaml")}
	t.Cleanup(o.end)
	return o
}

func (o *oracle) ask(t *testing.T, document string) verdict {
	if o.process == nil {
		o.begin(t)
	}
	require.NoError(t, json.NewEncoder(o.in).Encode(document))
	var answer verdict
	if err := o.out.Decode(&answer); err != nil {
		o.end()
		return verdict{Refusal: "etcd ends"}
	}
	return answer
}

func (o *oracle) begin(t *testing.T) {
	o.process = exec.Command(os.Args[0])
	o.process.Env = append(os.Environ(), oracleEnv+"="+o.path)
	in, err := o.process.StdinPipe()
	require.NoError(t, err)
	out, err := o.process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, o.process.Start())
	o.in, o.out = in, json.NewDecoder(bufio.NewReader(out))
}

func (o *oracle) end() {
	if o.process == nil {
		return
	}
	_ = o.in.Close()
	_ = o.process.Wait()
	o.process = nil
}

// differences are the values that are not as plain etcd has them.
func differences(expected, found map[string]string) (all []string) {
	for name, value := range expected {
		if found[name] != value {
			all = append(all, fmt.Sprintf("%s is %q, not %q", name, found[name], value))
		}
	}
	return all
}
