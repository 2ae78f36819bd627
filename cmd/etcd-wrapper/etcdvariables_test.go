package main

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/bootstrap/etcdconf"
)

func TestEtcdVariables_namedWithWhatReplacesThem(t *testing.T) {
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "ETCD_") {
			t.Setenv(name, value) // restores the variable after the test
			require.NoError(t, os.Unsetenv(name))
		}
	}
	var log bytes.Buffer
	warnOfEtcdVariables(zerolog.New(&log))
	assert.Empty(t, log.String())
	for name, value := range map[string]string{
		"ETCD_NAME": "etcd-0", "ETCD_LISTEN_CLIENT_URLS": "http://0.0.0.0:2379", "ETCD_CERT_FILE": "/tls.crt", "ETCD_PEER_TRUSTED_CA_FILE": "/ca.crt",
		"ETCD_PEER_CERT_ALLOWED_CN": "etcd", "ETCD_CONFIG_FILE": "/etcd.yaml", "ETCD_ROOT_PASSWORD": "secret", "ETCD_DATA_DIR": "",
		"ETCD_SERVICE_HOST": "10.0.0.1", "ETCD_PORT": "tcp://10.0.0.1:2379", "ETCD_PORT_2379_TCP_PROTO": "tcp", "ETCD_WRAPPER_LOG_LEVEL": "info",
		"ETCDCTL_API": "3", "ETCD_INITIAL_CLUSTER_STATE": "new",
	} {
		t.Setenv(name, value)
	}
	warnOfEtcdVariables(zerolog.New(&log))
	var messages []string
	for line := range strings.Lines(log.String()) {
		_, message, _ := strings.Cut(strings.TrimSuffix(line, "\"}\n"), `"message":"`)
		messages = append(messages, message)
	}
	assert.Equal(t, []string{
		"ignoring environment variable ETCD_CERT_FILE; set client-transport-security.cert-file in etcd's configuration instead",
		"ignoring environment variable ETCD_CONFIG_FILE; set --etcd-config-file instead",
		"ignoring environment variable ETCD_INITIAL_CLUSTER_STATE; set initial-cluster-state in etcd's configuration instead",
		"ignoring environment variable ETCD_LISTEN_CLIENT_URLS; set listen-client-urls in etcd's configuration instead",
		"ignoring environment variable ETCD_NAME; set name in etcd's configuration instead",
		"ignoring environment variable ETCD_PEER_CERT_ALLOWED_CN; set peer-transport-security.allowed-cn in etcd's configuration instead",
		"ignoring environment variable ETCD_PEER_TRUSTED_CA_FILE; set peer-transport-security.trusted-ca-file in etcd's configuration instead",
		"ignoring environment variables that match no setting of etcd or etcd-wrapper",
	}, messages)
	assert.NotContains(t, log.String(), "secret", "values are not logged")
}

// etcd accepts any valid key without a value, so the test does not depend on the types of the keys.
func TestReplacement_isAKeyThatEtcdKnows(t *testing.T) {
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	embed.NewConfig().AddFlags(flags)
	keys := 0
	flags.VisitAll(func(f *flag.Flag) {
		key, ok := strings.CutSuffix(replacement("ETCD_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))), " in etcd's configuration")
		if !ok {
			assert.Contains(t, []string{"config-file", "client-crl-file", "peer-crl-file", "raft-read-timeout", "raft-write-timeout"}, f.Name)
			return
		}
		keys++
		yaml := key + ":\n"
		if section, inner, ok := strings.Cut(key, "."); ok {
			yaml = section + ": {" + inner + ": }\n"
		}
		if base := "name: default\ndata-dir: /v/new.etcd\n"; !strings.Contains(base, yaml[:len(yaml)-1]) {
			yaml = base + yaml
		} else {
			yaml = base
		}
		checked, err := etcdconf.Parse([]byte(yaml))
		if assert.NoError(t, err, f.Name) {
			assert.NotContains(t, strings.Join(checked.Warnings, "\n"), "unknown key", f.Name)
		}
	})
	assert.Greater(t, keys, 100)
}
