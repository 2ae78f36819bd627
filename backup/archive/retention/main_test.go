package retention_test

import (
	"flag"
	"os"
	"testing"
)

// quick is how many histories are tried unless -rapid.checks says otherwise; a longer run is
// go test ./backup/archive/retention -run Promised -rapid.checks 1500.
const quick = "30"

func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set(quick) // it is a number
	}
	os.Exit(m.Run())
}
