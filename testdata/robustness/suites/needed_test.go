//go:build needed

package suites

// These imports keep etcd's tests in go.mod. The build tag of this file is never set.
import (
	_ "go.etcd.io/etcd/tests/v3/common"
	_ "go.etcd.io/etcd/tests/v3/e2e"
)
