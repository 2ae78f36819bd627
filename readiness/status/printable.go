package status

import (
	"reflect"

	"etcd-wrapper/internal/printable"
)

// printable returns the document with every text made fit for a terminal, since it may quote a stranger. What is shared with
// others is left alone.
func (d Document) printable() Document {
	return cleaned(reflect.ValueOf(d)).Interface().(Document)
}

// cleaned is a copy whose texts are printable, however deep they lie.
func cleaned(of reflect.Value) reflect.Value {
	told := reflect.New(of.Type()).Elem()
	told.Set(of)
	switch of.Kind() {
	case reflect.String:
		told.SetString(printable.Line(of.String()))
	case reflect.Pointer:
		if !of.IsNil() {
			told.Set(cleaned(of.Elem()).Addr())
		}
	case reflect.Slice:
		if !of.IsNil() {
			told.Set(reflect.MakeSlice(of.Type(), of.Len(), of.Len()))
		}
		for i := range of.Len() {
			told.Index(i).Set(cleaned(of.Index(i)))
		}
	case reflect.Struct:
		for i := range of.NumField() {
			if field := told.Field(i); field.CanSet() { // not those of a time
				field.Set(cleaned(of.Field(i)))
			}
		}
	}
	return told
}
