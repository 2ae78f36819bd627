package backups_test

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/cmd/suites/harness"
)

// echoRequest rejects every request. The response contains the request's URL and headers, including the credentials.
func echoRequest(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("X-Ms-Error-Code", "AuthenticationFailed")
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprintf(w, "<Error><Code>AccessDenied</Code><Message>%s %v</Message></Error>", r.URL, r.Header)
}

// The program must never print the store's credentials, even if the server includes them in an error message.
func TestCredentials_areNeverPrinted(t *testing.T) {
	t.Parallel()
	pair := formattest.NewKeys(t)
	identity, err := os.ReadFile(pair.Identities)
	require.NoError(t, err)
	keys := []string{
		"--backup-recipients=" + pair.Recipients, "--backup-identities=" + pair.Identities,
		"--backup-signing-key=" + pair.SigningKey, "--backup-trusted-keys=" + pair.TrustedKeys,
	}
	server := httptest.NewServer(http.HandlerFunc(echoRequest))
	t.Cleanup(server.Close)
	at := url.QueryEscape(server.URL)
	for name, test := range map[string]struct {
		url         string
		environment map[string]string
		secrets     []string
	}{
		"s3": {
			"s3://bucket/p?path-style=true&endpoint=" + at,
			map[string]string{"AWS_ACCESS_KEY_ID": "AKEYID", "AWS_SECRET_ACCESS_KEY": "s3cret-s3", "AWS_SESSION_TOKEN": "s3cret-session"},
			[]string{"s3cret-s3", "s3cret-session", "Signature="},
		},
		"azblob with a key": {
			"azblob://container/p?account=account&endpoint=" + at,
			map[string]string{"AZURE_STORAGE_KEY": "czNjcmV0LWF6dXJl"},
			[]string{"czNjcmV0LWF6dXJl", "s3cret-azure", "SharedKey"},
		},
		"azblob with a shared access signature": {
			"azblob://container/p?account=account&endpoint=" + at,
			map[string]string{"AZURE_STORAGE_SAS_TOKEN": "sv=2021-12-02&sig=s3cret-sas"},
			[]string{"s3cret-sas", "sig="},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemberOn(t, depot{url: test.url}, append(keys, "--recover=never")...)
			for _, variable := range slices.Sorted(maps.Keys(test.environment)) {
				m.Env = append(m.Env, variable+"="+test.environment[variable])
			}
			all := m.Flags
			m.Flags = all[:2] // only the flags for the configuration, without --backup-store
			m.StartAndStop()  // create data: a member without data waits until the store is reachable
			m.Flags = all
			run := m.StartReady()
			awaitBackupStatus(run, "the store rejects the request", hasProblem)
			m.write("key", "value")
			var outputs []string
			for _, path := range []string{"/", "/lifecycle", "/metrics", "/backup", "/readyz?verbose", "/statemachine.svg"} {
				_, body := run.Request(http.MethodGet, path)
				outputs = append(outputs, body)
			}
			for _, command := range [][]string{{"status"}, {"backup", "list"}, {"backup", "list", m.flag()}, {"backup", "verify"}} {
				out, log, _ := m.Begin(command...).Wait()
				outputs = append(outputs, out, log)
			}
			m.ExpectTerminationMessage()
			run.Shutdown()
			last, err := os.ReadFile(m.TerminationMessage())
			require.NoError(t, err)
			outputs = append(append(outputs, string(last)), run.Log.FindText("")...)
			require.Contains(t, strings.Join(outputs, "\n"), "permission denied")
			lines := strings.Fields(string(identity))
			for _, secret := range append(test.secrets, lines[len(lines)-1]) {
				for _, text := range outputs {
					assert.NotContains(t, text, secret)
				}
			}
		})
	}
}

// withoutUmask clears the umask so that files get exactly the mode that the program requests.
func (m *member) withoutUmask() {
	m.Under = []string{"sh", "-c", `umask 0; exec "$0" "$@"`}
}

// Backup files must not be readable by other users, because backups contain every secret in etcd.
func TestFiles_permissions(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.withoutUmask()
	before := m.modes()
	run := m.StartReady()
	run.AwaitStored(m.write("key", "in the store"))
	awaitBackupStatus(run, "a full snapshot has passed its test restore", func(b facts.Backups) bool { return b.LastVerification != nil })
	rename(t, m.mount, m.mount+".away")
	m.write("key", "queued")
	awaitBackupStatus(run, "the change is in the spool", func(b facts.Backups) bool { return b.SpoolBytes > 0 && hasProblem(b) })
	unreachable := m.modes()
	rename(t, m.mount+".away", m.mount)
	awaitBackupStatus(run, "the change is uploaded", recovered)
	out := filepath.Join(m.Dir, "made")
	require.NoError(t, os.Mkdir(out, 0o700))
	m.Env = append(m.Env, "TMPDIR="+out)
	for _, args := range [][]string{
		{"backup", "verify", m.flag()},
		{"backup", "export", m.flag(), filepath.Join(out, "snapshot")},
		{"restore", m.flag(), "--data-dir=" + filepath.Join(out, "restored")},
	} {
		require.Zero(t, m.Run(args...).Exit(harness.Patience), "%v", args)
	}
	run.Shutdown()
	require.NotEmpty(t, m.modes()[filepath.Join(out, "restored", "member", "snap", "db")], "the restored database exists")
	for when, all := range map[string]map[string]fs.FileMode{"while the store is unreachable": unreachable, "at the end": m.modes()} {
		for path, mode := range all {
			if _, existed := before[path]; !existed {
				assert.Zero(t, mode.Perm()&0o077, "%s: %s %s", when, mode, path)
			}
		}
	}
}

// modes returns the modes of all files in the directories that the program writes to.
func (m *member) modes() map[string]fs.FileMode {
	m.T.Helper()
	modes := map[string]fs.FileMode{}
	for _, root := range []string{m.Dir, filepath.Dir(m.mount)} {
		require.NoError(m.T, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil // removed in the meantime
			}
			if err != nil {
				return err
			}
			if info, err := entry.Info(); err == nil {
				modes[path] = info.Mode()
			}
			return nil
		}))
	}
	return modes
}
