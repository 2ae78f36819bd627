package s3

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
)

// keyOf is the access key that a request was signed with.
func keyOf(r *http.Request) string {
	_, credential, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(credential, "/")
	return key
}

func withoutCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestCredentialsAreReadAgainWhenTheirFileChanges(t *testing.T) {
	f := &fake{reply: created}
	s := against(t, f)
	withoutCredentials(t)
	path := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", path)
	for i, key := range []string{"FIRST", "SECOND1"} {
		content := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = SECRET\n", key)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
		assert.Equal(t, key, keyOf(f.asked[i]))
	}
	require.NoError(t, os.WriteFile(path, []byte("[other]\nSECRET"), 0o600))
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	assert.ErrorIs(t, err, store.ErrDenied)
	assert.NotContains(t, err.Error(), "SECRET")
}

// As a Secret has it that was made of a file.
func TestWhiteSpaceAfterACredentialIsTrimmed(t *testing.T) {
	f := &fake{reply: created}
	s := against(t, f)
	withoutCredentials(t)
	sign := func(end string) string {
		t.Setenv("AWS_ACCESS_KEY_ID", "KEY"+end)
		t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET"+end)
		t.Setenv("AWS_SESSION_TOKEN", "TOKEN"+end)
		value, err := (&chain{}).Retrieve()
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
		return value.AccessKeyID + " " + value.SecretAccessKey + " " + value.SessionToken
	}
	assert.Equal(t, "KEY SECRET TOKEN", sign(""))
	assert.Equal(t, "KEY SECRET TOKEN", sign("\n"))
	assert.Equal(t, "KEY SECRET TOKEN", sign("\r\n"))
	assert.Equal(t, "KEY", keyOf(f.asked[2]))
}

func TestNoRequestIsSentWithoutCredentials(t *testing.T) {
	f := &fake{reply: created}
	s := against(t, f)
	withoutCredentials(t)
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	assert.ErrorIs(t, err, store.ErrDenied)
	assert.ErrorContains(t, err, "no credentials found in environment, files, workload identity or instance metadata")
	assert.Empty(t, f.asked)
}

func TestPodIdentityIsFetchedWithTheTokenFile(t *testing.T) {
	f := &fake{reply: created}
	s := against(t, f)
	withoutCredentials(t)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("pod-token"), 0o600))
	fetched := 0
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched++
		assert.Equal(t, "pod-token", r.Header.Get("Authorization"))
		fmt.Fprintf(w, `{"AccessKeyId":"POD","SecretAccessKey":"x","Token":"t","Expiration":%q}`,
			time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.URL)
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)
	require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
	assert.Equal(t, "POD", keyOf(f.asked[0]))
	assert.Equal(t, "t", f.asked[0].Header.Get("X-Amz-Security-Token"))
	require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
	assert.Equal(t, 1, fetched, "they last")
	f.reply = func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, storetest.ErrorResponse{Status: http.StatusForbidden, Code: "InvalidAccessKeyId"})
	}
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrDenied)
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrDenied)
	assert.Equal(t, 2, fetched, "those that were refused are replaced")
	agent.Close()
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorContains(t, err, "cannot fetch the credentials of the workload identity")
}
