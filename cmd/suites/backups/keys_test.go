package backups_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format/formattest"
)

// encryptedTo returns flags with which the program encrypts, decrypts, signs and verifies backups with the given keys.
func encryptedTo(pair formattest.Keys) []string {
	return []string{
		"--backup-recipients=" + pair.Recipients, "--backup-identities=" + pair.Identities,
		"--backup-signing-key=" + pair.SigningKey, "--backup-trusted-keys=" + pair.TrustedKeys,
	}
}

func TestStore_otherKeysAreRefused(t *testing.T) {
	t.Parallel()
	ours, others := formattest.NewKeys(t), formattest.NewKeys(t)
	m := newMember(t)
	plain := m.Flags
	m.Flags = append(plain[:len(plain):len(plain)], encryptedTo(ours)...)
	run := m.StartReady()
	run.AwaitStored(m.write("key", "encrypted with our keys"))
	awaitBackupStatus(run, "the encrypted full snapshot passes its test restore", func(b facts.Backups) bool { return b.LastVerification != nil && b.LastVerification.Passed })
	run.Shutdown()
	before := files(t, m.dir)

	m.Flags = append(plain[:len(plain):len(plain)], encryptedTo(others)...)
	wrong := m.StartReady()
	m.requireServingWithProblem(wrong, "not signed by a key in --backup-trusted-keys")
	wrong.Shutdown()
	assert.Equal(t, before, files(t, m.dir), "the store is unchanged")

	m.Flags = append(plain[:len(plain):len(plain)], encryptedTo(ours)...)
	again := m.StartReady()
	again.AwaitStored(m.write("key", "with our keys again"))
	awaitBackupStatus(again, "backups continue", recovered)
	again.Shutdown()
	_, log, code := m.Begin("backup", "export", m.flag(), "--backup-trusted-keys="+ours.TrustedKeys, m.Dir+"/out").Wait()
	assert.NotZero(t, code)
	assert.Contains(t, log, "--backup-identities", "the error names the missing flag")
	file := m.Dir + "/snapshot"
	m.command(append([]string{"backup", "export", m.flag(), file}, encryptedTo(ours)[1:2]...)...)
	require.Equal(t, "with our keys again", ofSnapshot(t, file)["key"])
}
