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

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
)

// keyOf returns the access key that was used to sign a request.
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

// The credentials must be trimmed, because a Secret created from a file often ends with a newline.
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
	assert.ErrorContains(t, err, "no credentials found in the environment, files, workload identity or instance metadata")
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
	assert.Equal(t, 1, fetched, "unexpired credentials must be reused")
	f.reply = func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, storetest.ErrorResponse{Status: http.StatusForbidden, Code: "InvalidAccessKeyId"})
	}
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrDenied)
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrDenied)
	assert.Equal(t, 2, fetched, "rejected credentials must be fetched again")
	agent.Close()
	err := s.Put(t.Context(), "a", strings.NewReader("x"))
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorContains(t, err, "cannot get credentials for the workload identity")
}

// fakeAmazon simulates Amazon's endpoints and records requests.
type fakeAmazon struct {
	asked    []string
	tokens   []string      // tokens presented by clients
	lifetime time.Duration // lifetime of the returned credentials
}

func (a *fakeAmazon) answer(w http.ResponseWriter, r *http.Request) {
	a.asked = append(a.asked, r.Method+" "+r.Host+r.URL.Path)
	until := time.Now().Add(a.lifetime).UTC().Format(time.RFC3339)
	role := fmt.Sprintf(`{"Code":"Success","AccessKeyId":"KEY","SecretAccessKey":"s","Token":"t","Expiration":%q}`, until)
	switch r.Host + r.URL.Path {
	case "sts.eu-central-1.amazonaws.com/":
		a.tokens = append(a.tokens, r.PostFormValue("RoleArn")+" "+r.PostFormValue("WebIdentityToken"))
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>KEY</AccessKeyId>`+
			`<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials>`+
			`</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, until)
	case "169.254.169.254/latest/api/token":
		fmt.Fprint(w, "session")
	case "169.254.169.254/latest/meta-data/iam/security-credentials/":
		fmt.Fprint(w, "role")
	case "169.254.169.254/latest/meta-data/iam/security-credentials/role":
		a.tokens = append(a.tokens, r.Header.Get("X-Aws-Ec2-Metadata-Token"))
		fmt.Fprint(w, role)
	case "169.254.170.2/task", "169.254.170.23/v1/credentials":
		a.tokens = append(a.tokens, r.Header.Get("Authorization"))
		fmt.Fprint(w, role)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
}

func (a *fakeAmazon) chain(t *testing.T) *chain {
	withoutCredentials(t)
	a.lifetime = time.Hour
	return &chain{iam: &credentials.IAM{Client: storetest.NewRedirectClient(t, a.answer)}}
}

func file(t *testing.T, content string) (path string) {
	path = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestCredentialsComeFromEachSource(t *testing.T) {
	profiles := "[default]\naws_access_key_id = OTHER\naws_secret_access_key = s\n[backup]\naws_access_key_id = KEY\naws_secret_access_key = s\naws_session_token = t\n"
	for name, test := range map[string]struct {
		environment map[string]string
		asked       []string // requests to Amazon's endpoints
		token       string   // token sent with the last request
	}{
		"environment":       {map[string]string{"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}, nil, ""},
		"profile in a file": {map[string]string{"AWS_SHARED_CREDENTIALS_FILE": file(t, profiles), "AWS_PROFILE": "backup"}, nil, ""},
		"service account role (IRSA)": {
			map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": file(t, "first"), "AWS_ROLE_ARN": "arn:role", "AWS_REGION": "eu-central-1"},
			[]string{"POST sts.eu-central-1.amazonaws.com/"},
			"arn:role first",
		},
		"EKS Pod Identity": {
			map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file(t, "first")},
			[]string{"GET 169.254.170.23/v1/credentials"},
			"first",
		},
		"ECS task": {map[string]string{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/task"}, []string{"GET 169.254.170.2/task"}, ""},
		"machine role": {map[string]string{"AWS_EC2_METADATA_DISABLED": ""}, []string{
			"PUT 169.254.169.254/latest/api/token", "GET 169.254.169.254/latest/meta-data/iam/security-credentials/",
			"GET 169.254.169.254/latest/meta-data/iam/security-credentials/role",
		}, "session"},
	} {
		t.Run(name, func(t *testing.T) {
			amazon := &fakeAmazon{}
			c := amazon.chain(t)
			for variable, value := range test.environment {
				t.Setenv(variable, value)
			}
			found, err := c.Retrieve()
			require.NoError(t, err)
			assert.Equal(t, []string{"KEY", "s", "t"}, []string{found.AccessKeyID, found.SecretAccessKey, found.SessionToken})
			assert.Equal(t, test.asked, amazon.asked)
			if test.asked != nil {
				assert.Equal(t, []string{test.token}, amazon.tokens)
				assert.False(t, c.IsExpired())
			}
		})
	}
}

func TestARenewedTokenFileIsReadAgain(t *testing.T) {
	amazon := &fakeAmazon{}
	c := amazon.chain(t)
	path := file(t, "first")
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", path)
	t.Setenv("AWS_ROLE_ARN", "arn:role")
	t.Setenv("AWS_REGION", "eu-central-1")
	amazon.lifetime = 0
	_, err := c.Retrieve()
	require.NoError(t, err)
	assert.True(t, c.IsExpired(), "the credentials must have expired")
	require.NoError(t, os.WriteFile(path, []byte("second"), 0o600))
	_, err = c.Retrieve()
	require.NoError(t, err)
	assert.Equal(t, []string{"arn:role first", "arn:role second"}, amazon.tokens)

	t.Setenv("AWS_REGION", "nowhere") // fakeAmazon denies requests to this region
	_, err = c.Retrieve()
	assert.Error(t, err)
	require.NoError(t, os.Remove(path))
	_, err = c.Retrieve()
	assert.ErrorIs(t, err, store.ErrUnavailable, "the token file may not be mounted yet")
}
