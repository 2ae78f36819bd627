package s3

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"etcd-wrapper/backup/store"
)

// chain implements credentials.Provider with the sources of Amazon's own tools: environment, files, then workload identity (IRSA, Pod
// Identity, ECS) or the machine's role. The library serializes its calls. Unlike the library's own chain, it never lets a request
// go out without credentials.
type chain struct {
	iam    *credentials.IAM
	source credentials.Provider // source of the credentials, or nil
}

var errNone = fmt.Errorf("no credentials found in environment, files, workload identity or instance metadata: %w", store.ErrDenied)

// Retrieve implements credentials.Provider.
func (c *chain) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext implements credentials.Provider.
func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	environment := &credentials.EnvAWS{}
	if value, err := environment.RetrieveWithCredContext(cc); err == nil && value.AccessKeyID != "" {
		c.source = environment
		return trimSpace(value), nil
	}
	files := &credentials.FileAWSCredentials{}
	value, err := files.RetrieveWithCredContext(cc)
	if err == nil && value.AccessKeyID != "" {
		c.source = files
		return value, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && os.Getenv("AWS_SHARED_CREDENTIALS_FILE") != "" {
		return credentials.Value{}, fmt.Errorf("AWS_SHARED_CREDENTIALS_FILE holds no credentials for this profile: %w", store.ErrDenied)
	}
	c.source = c.iam
	return c.fromIAM(cc)
}

// trimSpace removes white space around the variables, which a Secret has that was made from a file.
func trimSpace(value credentials.Value) credentials.Value {
	for _, part := range []*string{&value.AccessKeyID, &value.SecretAccessKey, &value.SessionToken} {
		*part = strings.TrimSpace(*part)
	}
	return value
}

func (c *chain) fromIAM(cc *credentials.CredContext) (credentials.Value, error) {
	if !hasIdentity() && os.Getenv("AWS_EC2_METADATA_DISABLED") == "true" {
		return credentials.Value{}, errNone
	}
	value, err := c.iam.RetrieveWithCredContext(cc)
	var refused credentials.ErrorResponse
	switch {
	case err == nil && value.AccessKeyID != "":
		return value, nil
	case !hasIdentity():
		return credentials.Value{}, errNone
	case cc != nil && cc.Context != nil && cc.Context.Err() != nil:
		return credentials.Value{}, context.Cause(cc.Context)
	case errors.As(err, &refused):
		return credentials.Value{}, fmt.Errorf("workload identity was refused: %w", store.ErrDenied)
	default:
		return credentials.Value{}, &store.Unavailable{Cause: errors.New("cannot fetch the credentials of the workload identity")}
	}
}

func hasIdentity() bool {
	names := []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}
	return slices.ContainsFunc(names, func(name string) bool { return os.Getenv(name) != "" })
}

// IsExpired implements credentials.Provider. The library's provider of files is always expired, so they are read for each request.
func (c *chain) IsExpired() bool { return c.source == nil || c.source.IsExpired() }
