package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"etcd-wrapper/bootstrap/etcdconf"
)

const unit = "systemd/etcd-wrapper.service"

// hostCommands returns the commands in the systemd unit and the Compose file, keyed by file.
func hostCommands(t *testing.T) map[string][]string {
	t.Helper()
	start := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(read(t, unit))
	require.NotNil(t, start)
	return map[string][]string{unit: strings.Fields(start[1]), "compose/compose.yaml": composed(t).Command}
}

type service struct {
	Command     []string `json:"command"`
	User        string   `json:"user"`
	ReadOnly    bool     `json:"read_only"`
	CapDrop     []string `json:"cap_drop"`
	SecurityOpt []string `json:"security_opt"`
	Ports       []string `json:"ports"`
	Healthcheck struct {
		Test []string `json:"test"`
	} `json:"healthcheck"`
}

func composed(t *testing.T) service {
	t.Helper()
	var file struct {
		Services map[string]service `json:"services"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "compose/compose.yaml")), &file))
	require.Contains(t, file.Services, "etcd")
	return file.Services["etcd"]
}

func TestHostCommands_exist(t *testing.T) {
	known := flags(t)
	for file, command := range hostCommands(t) {
		assert.Equal(t, "start-etcd", command[0], file)
		for _, argument := range command[1:] {
			name, _, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
			assert.True(t, known[name], "%s: start-etcd has no flag %s", file, argument)
		}
	}
}

func TestHostConfigurations_areValid(t *testing.T) {
	for _, folder := range []string{"systemd", "compose"} {
		checked, err := etcdconf.Parse([]byte("data-dir: /var/lib/etcd/new.etcd\n" + read(t, folder, "etcd.yaml")))
		require.NoError(t, err, folder)
		assert.Empty(t, checked.Warnings, folder)
	}
}

func TestHostContainer_hasNoPrivileges(t *testing.T) {
	etcd := composed(t)
	assert.Equal(t, "65532:65532", etcd.User, "the container must run as the user of the image")
	assert.True(t, etcd.ReadOnly)
	assert.Equal(t, []string{"ALL"}, etcd.CapDrop)
	assert.Equal(t, []string{"no-new-privileges:true"}, etcd.SecurityOpt)
	for _, port := range etcd.Ports {
		assert.True(t, strings.HasPrefix(port, "127.0.0.1:"), "without TLS, only this host may reach port %s", port)
	}
	assert.Equal(t, []string{"CMD", "/etcd-wrapper", "status"}, etcd.Healthcheck.Test)
}

func TestSystemdUnit_isValid(t *testing.T) {
	content := read(t, unit)
	for _, line := range []string{"Type=notify", "TimeoutStartSec=infinity", "User=etcd", "NoNewPrivileges=yes", "ProtectSystem=strict"} {
		assert.Contains(t, content, "\n"+line+"\n")
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	self, err := os.Executable() // replaces the unit's program, which may not be installed
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), filepath.Base(unit))
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(content, "/usr/local/bin/etcd-wrapper", self, 1)), 0o600))
	for _, arguments := range [][]string{{"verify", path}, {"security", "--offline=true", "--threshold=20", path}} {
		output, err := exec.Command(analyze, arguments...).CombinedOutput()
		require.NoError(t, err, "%s", output)
		if arguments[0] == "verify" {
			assert.NotContains(t, string(output), filepath.Base(unit), "systemd-analyze must not report problems")
		}
	}
}
