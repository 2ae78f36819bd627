package commandline

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTarget(t *testing.T) {
	noon := time.Date(2026, time.November, 22, 12, 0, 0, 500_000_000, time.UTC)
	for text, expected := range map[string]Target{
		"latest": {}, "revision:12": {Revision: 12}, "time:2026-11-22T12:00:00.5Z": {Time: noon}, "time:2026-11-22T14:00:00.5+02:00": {Time: noon},
	} {
		var target Target
		require.NoError(t, target.UnmarshalText([]byte(text)), text)
		assert.Equal(t, expected.Revision, target.Revision)
		assert.True(t, expected.Time.Equal(target.Time), text)
	}
}

func TestParseTime(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"2026-11-22T10:00:00Z":      time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC),
		"2026-11-22T10:00:00+02:00": time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC),
		"2026-11-22 03:00":          time.Date(2026, 11, 22, 3, 0, 0, 0, time.Local),
		"2026-11-22 03:00:30":       time.Date(2026, 11, 22, 3, 0, 30, 0, time.Local),
		"2026-11-22":                time.Date(2026, 11, 22, 0, 0, 0, 0, time.Local),
		"-15m":                      now.Add(-15 * time.Minute),
	} {
		read, err := parseTime(text, now)
		require.NoError(t, err, text)
		assert.True(t, want.Equal(read), "%s is %s", text, read)
	}
	_, err := parseTime("-15", now)
	assert.Error(t, err)
}

func TestTarget_invalid(t *testing.T) {
	for text, why := range map[string]string{
		"":                              `" is not one of latest, revision:N and time:T`,
		"12":                            `"12" is not one of latest, revision:N and time:T`,
		"latest:":                       `" is not one of latest, revision:N and time:T`,
		"latest:12":                     `" is not one of latest, revision:N and time:T`,
		"revision:":                     "not a valid revision",
		"revision:0":                    "not a valid revision",
		"revision:-1":                   "not a valid revision",
		"revision:1e3":                  "not a valid revision",
		"time:12:00":                    "not a valid time",
		"time:2026-11-22T12:00:00":      "not a valid time",
		"time:0001-01-01T00:00:00Z":     "not a valid time",
		"yesterday:2026-11-22":          `" is not one of latest, revision:N and time:T`,
		"Revision:3":                    `" is not one of latest, revision:N and time:T`,
		"revision:99999999999999999999": "not a valid revision",
		"time:2999-11-22T12:00:00Z":     "in the future",
	} {
		var target Target
		assert.ErrorContains(t, target.UnmarshalText([]byte(text)), why, text)
	}
}

func TestThreshold(t *testing.T) {
	for text, want := range map[string]Threshold{
		"free=45%,min=100Mi":        {Free: 0.45, Min: 100 << 20, Pause: 15 * time.Second},
		"min=2Gi,free=99%,pause=1s": {Free: 0.99, Min: 2 << 30, Pause: time.Second},
		"pause=0s,free=1%,min=4096": {Free: 0.01, Min: 4096},
		"free=1%,min=100M":          {Free: 0.01, Min: 1e8, Pause: 15 * time.Second},
		"free=1%,min=1Ti":           {Free: 0.01, Min: 1 << 40, Pause: 15 * time.Second},
		"never":                     {Pause: 15 * time.Second},
	} {
		var read Threshold
		require.NoError(t, read.UnmarshalText([]byte(text)), text)
		assert.InDelta(t, want.Free, read.Free, 1e-9, text)
		assert.Equal(t, want.Min, read.Min, text)
		assert.Equal(t, want.Pause, read.Pause, text)
	}
}

func TestThreshold_invalid(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "is not one of free=…, min=… and pause=…",
		"free=45%":            "both",
		"min=1Mi":             "both",
		"free=45,min=1Mi":     "not a percentage",
		"free=0%,min=1Mi":     "not a percentage",
		"free=100%,min=1Mi":   "not a percentage",
		"free=45%,min=-1":     "not a valid size",
		"free=45%,min=1Pi":    "not a valid size",
		"free=45%,min=0Mi":    "greater than 0",
		"free=45%,most=100Mi": "is not one of free=…, min=… and pause=…",
		"pause=15s":           "must both be greater than 0",
		"free=1%,min=1,pause": "not a valid duration",
	} {
		read := Threshold{Min: 7}
		err := read.UnmarshalText([]byte(text))
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "free=45%,min=100Mi", text)
		assert.Equal(t, Threshold{Min: 7}, read, "an invalid value leaves the threshold unchanged")
	}
}

func TestRecovery_Owner(t *testing.T) {
	for _, test := range []struct{ name, namespace, token, owner string }{
		{"", "shop", "etcd-cluster", "shop/etcd-cluster"},
		{"", "", "etcd-cluster", "etcd-cluster"},
		{"", "shop", "shop/etcd", "shop/etcd"},
		{"shop/main", "other", "etcd-cluster", "shop/main"},
	} {
		t.Setenv("POD_NAMESPACE", test.namespace)
		assert.Equal(t, test.owner, (&Recovery{ClusterName: test.name}).Owner(test.token))
	}
}
