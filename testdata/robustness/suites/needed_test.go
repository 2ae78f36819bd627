//go:build needed

package suites

// These imports of etcd's tests are for go.mod; nothing is built with this tag.
import (
	_ "go.etcd.io/etcd/tests/v3/common"
	_ "go.etcd.io/etcd/tests/v3/e2e"
)
