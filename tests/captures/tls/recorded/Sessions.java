import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.security.KeyStore;
import java.util.*;
import javax.net.ssl.*;

/** Sessions of JSSE for tests: two engines in memory, what each says in plaintext and on the wire, a line a write.
 *
 *  java -javaagent:extract-tls-secrets-4.0.0.jar=keys.log Sessions.java STORE VERSION SUITE CONNECTIONS
 *
 *  Prints "C|S T|W HEX": who, text or wire. "-" begins a connection. */
public class Sessions {
    static SSLContext context;

    static SSLEngine engine(boolean client, String version, String suite) {
        SSLEngine made = client ? context.createSSLEngine("broker.example", 9093) : context.createSSLEngine();
        made.setUseClientMode(client);
        made.setEnabledProtocols(new String[] {version});
        made.setEnabledCipherSuites(new String[] {suite});
        return made;
    }

    static void say(String who, String what, byte[] data, int count) {
        System.out.println(who + " " + what + " " + HexFormat.of().formatHex(data, 0, count));
    }

    /** Hand over all that an engine wants to say, with this text. */
    static void wrap(String who, SSLEngine from, ByteBuffer text, ByteArrayOutputStream wire) throws Exception {
        byte[] room = new byte[40000];
        while (true) {
            ByteBuffer out = ByteBuffer.wrap(room);
            SSLEngineResult done = from.wrap(text, out);
            if (out.position() > 0) {
                say(who, "W", room, out.position());
                wire.write(room, 0, out.position());
            }
            tasks(from);
            boolean more = from.getHandshakeStatus() == SSLEngineResult.HandshakeStatus.NEED_WRAP;
            if (done.getStatus() != SSLEngineResult.Status.OK || (!more && !text.hasRemaining())) return;
            if (out.position() == 0 && !more) return;
        }
    }

    static void tasks(SSLEngine one) {
        for (Runnable task; (task = one.getDelegatedTask()) != null; ) task.run();
    }

    static void unwrap(SSLEngine to, ByteArrayOutputStream wire) throws Exception {
        ByteBuffer in = ByteBuffer.wrap(wire.toByteArray());
        wire.reset();
        while (in.hasRemaining()) {
            SSLEngineResult done = to.unwrap(in, ByteBuffer.allocate(40000));
            tasks(to);
            if (done.getStatus() != SSLEngineResult.Status.OK) break;
            if (done.bytesConsumed() == 0 && to.getHandshakeStatus() == SSLEngineResult.HandshakeStatus.NEED_WRAP) break;
        }
        wire.write(in.array(), in.position(), in.remaining());
    }

    static boolean idle(SSLEngine one) {
        return one.getHandshakeStatus() == SSLEngineResult.HandshakeStatus.NOT_HANDSHAKING;
    }

    public static void main(String[] words) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(Path.of(words[0]))) { store.load(in, "secret".toCharArray()); }
        KeyManagerFactory keys = KeyManagerFactory.getInstance("PKIX");
        keys.init(store, "secret".toCharArray());
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(store);
        context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        int texts = Integer.parseInt(words[4]);
        Random random = new Random(1);
        for (int connection = 0; connection < Integer.parseInt(words[3]); connection++) {
            System.out.println("-");
            SSLEngine client = engine(true, words[1], words[2]), server = engine(false, words[1], words[2]);
            ByteArrayOutputStream up = new ByteArrayOutputStream(), down = new ByteArrayOutputStream();
            ByteBuffer nothing = ByteBuffer.allocate(0);
            client.beginHandshake();
            server.beginHandshake();
            for (int turn = 0; turn < 20 && !(turn > 2 && idle(client) && idle(server)); turn++) {
                wrap("C", client, nothing, up);
                unwrap(server, up);
                wrap("S", server, nothing, down);
                unwrap(client, down);
            }
            for (int turn = 0; turn < texts; turn++) {
                byte[] text = new byte[turn % 3 == 2 ? 700 : 40];
                random.nextBytes(text);
                boolean asks = turn % 2 == 0;
                say(asks ? "C" : "S", "T", text, text.length);
                wrap(asks ? "C" : "S", asks ? client : server, ByteBuffer.wrap(text), asks ? up : down);
                unwrap(asks ? server : client, asks ? up : down);
                wrap(asks ? "S" : "C", asks ? server : client, nothing, asks ? down : up);  // a KeyUpdate that is owed
                unwrap(asks ? client : server, asks ? down : up);
            }
            client.closeOutbound();
            wrap("C", client, nothing, up);
            unwrap(server, up);
            server.closeOutbound();
            wrap("S", server, nothing, down);
            System.err.println(client.getSession().getCipherSuite() + " " + client.getSession().getProtocol());
        }
    }
}
