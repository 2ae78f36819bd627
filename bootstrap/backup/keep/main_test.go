package keep_test

import (
	"flag"
	"os"
	"testing"
)

// quick is how many histories are tried unless -rapid.checks says otherwise; a longer run is
// go test ./bootstrap/backup/keep -run Promised -rapid.checks 1500.
const quick = "30"

func TestMain(m *testing.M) {
	flag.Parse()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = checks.Value.Set(quick) // it is a number
	}
	os.Exit(m.Run())
}
