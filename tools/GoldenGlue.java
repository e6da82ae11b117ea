// Prints values as the serializers of AWS Glue's schema registry write them, with their schemas: one JSON object.
//
//     java -cp 'JARS/*' tools/GoldenGlue.java
//
// No registry is asked: the serializers are given the id of the schema's version. A case is as GoldenApicurio.java has it.
import com.amazonaws.services.schemaregistry.serializers.GlueSchemaRegistryKafkaSerializer;
import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;

public class GoldenGlue {
    static final ObjectMapper MAPPER = new ObjectMapper();
    static final ObjectNode SCHEMAS = MAPPER.createObjectNode();
    static final ArrayNode CASES = MAPPER.createArrayNode();

    static final String ORDER = """
        {"type": "record", "name": "Order", "namespace": "shop", "fields": [
          {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]},
          {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}}]}""";
    static final String PROTO = """
        syntax = "proto3";
        package shop;
        message Other { string x = 1; }
        message Event { sint64 id = 1; string sku = 2; }
        """;
    static final String JSON_SCHEMA = """
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
         "properties": {"cents": {"type": "integer"}, "to": {"type": "string"}}}""";

    static GenericRecord order() {
        Schema schema = new Schema.Parser().parse(ORDER);
        GenericRecord order = new GenericData.Record(schema);
        order.put("id", -5L);
        order.put("note", "Zoë");
        order.put("state", new GenericData.EnumSymbol(schema.getField("state").schema(), "PAID"));
        return order;
    }

    static FieldDescriptorProto.Builder field(String name, int number, FieldDescriptorProto.Type type) {
        return FieldDescriptorProto.newBuilder().setName(name).setNumber(number).setType(type)
            .setLabel(FieldDescriptorProto.Label.LABEL_OPTIONAL);
    }

    static DynamicMessage event() throws Exception {
        FileDescriptorProto file = FileDescriptorProto.newBuilder().setName("shop.proto").setPackage("shop").setSyntax("proto3")
            .addMessageType(DescriptorProto.newBuilder().setName("Other")
                .addField(field("x", 1, FieldDescriptorProto.Type.TYPE_STRING)))
            .addMessageType(DescriptorProto.newBuilder().setName("Event")
                .addField(field("id", 1, FieldDescriptorProto.Type.TYPE_SINT64))
                .addField(field("sku", 2, FieldDescriptorProto.Type.TYPE_STRING))).build();
        Descriptor event = FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName("Event");
        return DynamicMessage.newBuilder(event).setField(event.findFieldByName("id"), -7L)
            .setField(event.findFieldByName("sku"), "x").build();
    }

    static void add(String name, String dataFormat, String format, String schema, Object value, String read, String compression)
            throws Exception {
        UUID id = UUID.nameUUIDFromBytes(dataFormat.getBytes("UTF-8"));
        Map<String, Object> configs = new HashMap<>();
        configs.put("region", "eu-central-1");
        configs.put("endpoint", "http://127.0.0.1:9");
        configs.put("dataFormat", dataFormat);
        configs.put("compression", compression);
        var credentials = StaticCredentialsProvider.create(AwsBasicCredentials.create("none", "none"));
        var serializer = new GlueSchemaRegistryKafkaSerializer(credentials, id, configs);
        serializer.configure(configs, false);
        byte[] data = serializer.serialize("orders", value);
        SCHEMAS.putObject(id.toString()).put("schema", schema).put("type", dataFormat).putObject("references");
        ObjectNode made = CASES.addObject();
        made.put("name", "glue-" + name + "-" + compression.toLowerCase()).put("topic", "orders").put("side", "value")
            .put("data", Base64.getEncoder().encodeToString(data)).put("format", format);
        made.putArray("headers");
        made.set("json", MAPPER.readTree(read));
    }

    public static void main(String[] arguments) throws Exception {
        for (String compression : new String[] {"NONE", "ZLIB"}) {
            add("avro", "AVRO", "avro", ORDER, order(), "{\"id\":-5,\"note\":\"Zoë\",\"state\":\"PAID\"}", compression);
            add("protobuf", "PROTOBUF", "protobuf", PROTO, event(), "{\"id\":-7,\"sku\":\"x\"}", compression);
            String value = "{\"cents\":5,\"to\":\"Zoë\"}";
            add("json", "JSON", "json_schema", JSON_SCHEMA, JsonDataWithSchema.builder(JSON_SCHEMA, value).build(), value,
                compression);
        }
        ObjectNode out = MAPPER.createObjectNode();
        out.set("schemas", SCHEMAS);
        out.set("cases", CASES);
        System.out.println(MAPPER.writerWithDefaultPrettyPrinter().writeValueAsString(out));
        System.exit(0);
    }
}
