package status

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
)

func TestAPatch_isWhatChangedAndGivesTheNewDocument(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	backup := &facts.Backups{Store: "s3://b", Revision: 1<<60 + 1, Window: &facts.Window{From: at}}
	before := Document{State: "Serving", Checks: []Check{{Name: "quorum"}}, Backup: backup, Recovery: &Recovery{State: "Build"}}
	after := before
	newer := *backup
	newer.Revision, newer.Window = 1<<60+3, nil
	after.Backup, after.Recovery, after.Checks = &newer, nil, nil
	from, err := decodeObject(before)
	require.NoError(t, err)
	to, err := decodeObject(after)
	require.NoError(t, err)
	assert.Empty(t, mergePatch(from, from))
	patch, err := json.Marshal(mergePatch(from, to))
	require.NoError(t, err)
	assert.JSONEq(t, `{"backup": {"revision": 1152921504606846979, "window": null}, "recovery": null, "checks": null}`, string(patch))
	received, err := applyEvent(from, patch)
	require.NoError(t, err)
	assert.Equal(t, after, received)
}
