package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/member/kubernetes"
	"etcd-wrapper/readiness/status"
)

func TestEventOf(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		kind, health, what string
		want               kubernetes.Event
	}{
		{"restore", "ok", "the cluster is restored", kubernetes.Event{Reason: "Restored"}},
		{"recovery", "failed", "refused: backups of another cluster", kubernetes.Event{Reason: "DataRefused", Warning: true}},
		{"alarm", "degraded", "alarm NOSPACE: writes are rejected", kubernetes.Event{Reason: "AlarmRaised", Warning: true, Subject: "alarm NOSPACE"}},
		{"alarm", "ok", "alarm NOSPACE: resolved", kubernetes.Event{Reason: "AlarmDisarmed", Subject: "alarm NOSPACE"}},
		{"problem", "degraded", "backups: store unavailable", kubernetes.Event{Reason: "Problem", Warning: true, Subject: "backups"}},
		{"problem", "ok", "backups: resolved", kubernetes.Event{Reason: "ProblemResolved", Subject: "backups"}},
		{"defragmentation", "ok", "defragmentation triggered by threshold took 2.4 s", kubernetes.Event{Reason: "Defragmented"}},
		{"defragmentation", "degraded", "no space", kubernetes.Event{Reason: "NotDefragmented", Warning: true}},
		{"restore_test", "degraded", "the hash differs", kubernetes.Event{Reason: "RestoreTestFailed", Warning: true}},
		{"start", "degraded", "the process started; previous exit: killed", kubernetes.Event{Reason: "LastRunFailed", Warning: true}},
	} {
		test.want.Note, test.want.At = test.what, at
		event, notable := eventOf(status.TimelineEvent{At: at, Kind: test.kind, Health: test.health, Message: test.what})
		assert.True(t, notable, test.kind)
		assert.Equal(t, test.want, event)
	}
	for _, kind := range []string{"start", "readiness", "leader", "full_snapshot", "restore_test", "recovery"} {
		_, notable := eventOf(status.TimelineEvent{Kind: kind, Health: "ok"})
		assert.False(t, notable, kind)
	}
}

func TestEvents_onlyInAPod(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	c := &startCommand{}
	account, _, err := c.pod()
	assert.NoError(t, err)
	post, stop := c.events(account, zerolog.Nop())
	post(status.TimelineEvent{Kind: "restore", Health: "ok"})
	stop()
	c.Kubernetes = []string{"events"}
	_, _, err = c.pod()
	assert.ErrorContains(t, err, "--kubernetes: not running in a pod")
}

func TestReadRootPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	for content, password := range map[string]string{
		"secret": "secret", "a:b \n": "a:b ", "secret\r\n": "secret", strings.Repeat("x", 72): strings.Repeat("x", 72),
		"\n": "", strings.Repeat("x", 73): "",
	} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		read, err := readRootPassword(file)
		assert.Equal(t, password, read)
		if password == "" {
			require.ErrorContains(t, err, "--root-password-file: "+file+": the password has ")
			assert.NotContains(t, err.Error(), "xx")
		}
	}
	none, err := readRootPassword("")
	require.NoError(t, err)
	assert.Empty(t, none)
}
